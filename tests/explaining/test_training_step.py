"""A training step in parts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.explaining.explanation import StepPart, TrainingStep
from tfperf.explaining.training_step import _at_rest, _batches_of, explain_step, step_words
from tfperf.exports.servable import Servable
from tfperf.training import fast_optimizer
from tfperf.training.optimizers import is_fast

PARTS = ["forward", "backward, activations", "backward, weights", "optimizer", "Python", "input"]


@pytest.fixture(scope="module")
def servable():
    return Servable.from_net(keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)]))


def batches(size):
    x = np.ones([64, 8], np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(size)


@pytest.mark.parametrize(
    "data", [None, (np.ones([64, 8], np.float32), np.ones(64)), "batches"], ids=["none", "arrays", "set"]
)
def test_a_step_is_the_sum_of_its_parts(servable, data):
    before = [np.array(weight) for weight in servable.net.weights]
    step = explain_step(servable, 4, batches(4) if data == "batches" else data, time_limit=0.5)
    assert [part.name for part in step.parts] == PARTS
    assert sum(part.seconds for part in step.parts) == pytest.approx(step.seconds)
    for weight, kept in zip(servable.net.weights, before, strict=True):
        np.testing.assert_array_equal(weight, kept)  # the model is as it was


def test_data_without_a_batch_are_refused(servable):
    with pytest.raises(ValueError, match=r"expected batches of 4, as is asked for\. Received: data without any"):
        explain_step(servable, 4, batches(4).take(0), time_limit=0.5)


def test_batches_of_another_size_are_refused(servable):
    with pytest.raises(ValueError, match=r"expected batches of 4, as is asked for\. Received: data in batches of 16"):
        explain_step(servable, 4, batches(16), time_limit=0.5)


def test_fewer_examples_than_a_batch_are_refused(servable):
    few = np.ones([3, 8], np.float32)
    with pytest.raises(ValueError, match=r"^expected 4 examples or more\. Received: 3$"):
        explain_step(servable, 4, (few, few), time_limit=0.1)


@pytest.mark.parametrize("steps", [2, 500])
def test_examples_in_memory_are_gathered_by_shuffled_places(servable, steps):
    x = np.repeat(np.arange(18, dtype=np.float32), 8).reshape([18, 8])
    fed = _batches_of((x, x), servable, 4, steps)
    assert "Prefetch" in type(fed).__name__
    assert not any("Shuffle" in type(one).__name__ for one in sources(fed))  # its buffer is filled row by row
    rows = np.concatenate([batch.numpy() for (batch,) in fed])
    assert rows.shape == (4 * min(steps, 4), 8)  # the two examples that make no batch are left out
    assert len(set(rows[:, 0])) == len(rows)
    assert list(rows[:, 0]) != sorted(rows[:, 0])
    np.testing.assert_array_equal(rows, rows[:, :1].repeat(8, axis=1))


def sources(fed):
    """A data set, and all that it reads from."""
    return [fed] + [one for source in fed._inputs() for one in sources(source)]


@pytest.mark.parametrize("named", ["arrays", "set"])
@pytest.mark.parametrize("keys", [("query-text", "Doc"), ("first", "second")], ids=["names of inputs", "other names"])
def test_a_dictionary_feeds_a_list_of_inputs_by_name(named, keys):
    query, doc = keras.Input((3,), name="query-text"), keras.Input((3,), name="Doc")
    net = keras.Model([query, doc], keras.layers.Dense(1)(keras.layers.Concatenate()([query, doc])))
    x = {keys[1]: np.ones([8, 3], np.float32), keys[0]: np.zeros([8, 3], np.float32)}
    data = (x, np.ones(8)) if named == "arrays" else tf.data.Dataset.from_tensor_slices((x, np.ones(8))).batch(4)
    zeros, ones = next(iter(_batches_of(data, Servable.from_net(net), 4, 2)))
    np.testing.assert_array_equal(zeros, np.zeros([4, 3]))
    np.testing.assert_array_equal(ones, np.ones([4, 3]))


def test_what_has_nothing_to_train_is_refused():
    net = keras.Sequential([keras.Input((8,)), keras.layers.ReLU()])
    with pytest.raises(HardwareError, match="with weights to train"):
        explain_step(Servable.from_net(net), 4, time_limit=0.5)


def test_the_words_begin_with_what_takes_longest():
    seconds = dict(zip(PARTS, [0.1, 0.02, 0.3, 0.05, 0.5, 0.03], strict=True))
    parts = tuple(StepPart(name=name, seconds=one, half_width=0.01) for name, one in seconds.items())
    first, *rest = step_words(TrainingStep(seconds=1.0, parts=parts, may_be_fast=True))
    assert first.startswith("a step of fit takes 1 s and waits for: Python 50%, backward, weights 30%, forward 10%")
    assert [one.split(":")[0] for one in rest] == ["Python", "backward, weights"]


@pytest.mark.parametrize("may_be_fast", [True, False])
def test_a_fast_optimizer_is_advised_where_it_can_be_had(may_be_fast):
    seconds = dict(zip(PARTS, [0.1, 0.1, 0.1, 0.5, 0.1, 0.1], strict=True))
    parts = tuple(StepPart(name=name, seconds=one, half_width=0.01) for name, one in seconds.items())
    lines = step_words(TrainingStep(seconds=1.0, parts=parts, may_be_fast=may_be_fast))
    assert "optimizer 50%" in lines[0]
    assert any("fast_optimizer" in line for line in lines) == may_be_fast


def with_everything_that_moves(optimizer):
    """A compiled net whose training moves statistics, seeds and, by a constraint, weights at any rate."""
    stack = [keras.layers.Dense(4, kernel_constraint="unit_norm"), keras.layers.BatchNormalization()]
    net = keras.Sequential([keras.Input((8,)), *stack, keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    net.compile(optimizer, "mse")
    return net


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
OPTIMIZERS = {
    "Adam": (lambda: keras.optimizers.Adam(), True),
    "fast": (lambda: fast_optimizer("adam"), False),
    "another": (lambda: keras.optimizers.Adafactor(), False),
    "scheduled": (lambda: keras.optimizers.SGD(SCHEDULE), True),
    "averaged": (lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2), True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_net_stays_as_it_was(name):
    make, may_be_fast = OPTIMIZERS[name]
    net = with_everything_that_moves(make())
    before = [variable.numpy() for variable in [*net.variables, *net.optimizer.variables]]
    step = explain_step(Servable.from_net(net), 4, time_limit=0.1)
    for variable, value in zip([*net.variables, *net.optimizer.variables], before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    assert step.may_be_fast == may_be_fast


def test_the_net_stays_as_it_was_after_an_error():
    net = with_everything_that_moves("adam")
    before = [variable.numpy() for variable in net.variables]
    with pytest.raises(ValueError, match="expected batches of 4"):
        explain_step(Servable.from_net(net), 4, batches(16), time_limit=0.1)
    for variable, value in zip(net.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


class Mine(keras.optimizers.SGD):
    """An optimizer of the user's own, within a function: Keras does not find it by its name."""

    __qualname__ = "somewhere.<locals>.Mine"


@pytest.mark.parametrize("wrap", [lambda one: one, keras.optimizers.LossScaleOptimizer], ids=["itself", "loss scale"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.AdamW(SCHEDULE, beta_1=0.5),
        lambda: fast_optimizer(keras.optimizers.AdamW(0.1, beta_1=0.5)),
        lambda: Mine(0.1, momentum=0.5),
        lambda: fast_optimizer(Mine(SCHEDULE, momentum=0.5)),
        lambda: keras.optimizers.SGD(lambda: 0.1, momentum=0.5),
    ],
    ids=["schedule", "fast", "own", "own, fast", "function"],
)
@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_at_rest_it_is_the_same_optimizer_at_the_rate_0(make, wrap):
    optimizer = wrap(make())
    rest = _at_rest(optimizer)
    assert type(rest) is type(optimizer) or is_fast(optimizer)
    assert is_fast(rest) == is_fast(optimizer)
    assert float(rest.learning_rate) == 0
    inner, own = (getattr(one, "inner_optimizer", one) for one in (rest, optimizer))
    assert isinstance(inner, type(own).__mro__[2] if is_fast(optimizer) else type(own))
    assert inner is not own
    same = set(own.get_config()) - {"learning_rate"}
    assert {name: inner.get_config()[name] for name in same} == {name: own.get_config()[name] for name in same}
