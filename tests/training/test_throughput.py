"""`Throughput` counts every step and example of a training once, and times them without validation and first call."""

import csv
import itertools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.measure.statistics import samples_needed
from tfperf.training import EpochThroughput, Throughput, fit
from tfperf.training.throughput import LOGGED

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 6)).astype("float32")  # batches of 4: five whole ones, and one of 2
Y = GENERATOR.integers(0, 3, 22)
TEST = (X[:9], Y[:9])
VALIDATION = 1000.0


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def drive(throughput, clock, epochs, steps=None):
    """Call the callback as `fit` does; an epoch is a list of calls (seconds before it, its steps, its seconds)."""
    logs = []
    throughput.set_params({"steps": steps})
    throughput.on_train_begin()
    for epoch, calls in enumerate(epochs):
        throughput.on_epoch_begin(epoch)
        begin = 0
        for before, count, seconds in calls:
            clock.wait(before)
            throughput.on_train_batch_begin(begin)
            clock.wait(seconds)
            throughput.on_train_batch_end(begin + count - 1)
            begin += count
        clock.wait(VALIDATION)  # whatever is after the last step
        throughput.on_test_begin()
        clock.wait(VALIDATION)
        throughput.on_test_end()
        logs.append({"loss": 1.0})
        throughput.on_epoch_end(epoch, logs[-1])
    throughput.on_train_end()
    return logs


def driven(epochs, steps=None, **options):
    """The callback after such a training."""
    throughput = Throughput(clock=(clock := FakeClock()), **options)
    drive(throughput, clock, epochs, steps)
    return throughput


SECONDS = st.integers(0, 2**12).map(lambda number: number / 1024)  # whose sums are exact
CALLS = st.lists(st.tuples(SECONDS, st.integers(1, 5), SECONDS), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(epochs=st.lists(CALLS, min_size=1, max_size=4))
def test_each_step_is_in_one_epoch_but_those_of_the_first_call(epochs):
    throughput = driven(epochs, batch_size=8)
    (_, _, first), *rest = epochs[0]
    assert throughput.first_step_seconds == first
    assert [one.epoch for one in throughput.epochs] == list(range(len(epochs)))
    for one, calls in zip(throughput.epochs, [rest, *epochs[1:]], strict=True):
        outside, steps, inside = (sum(numbers) for numbers in zip(*calls, strict=True)) if calls else (0, 0, 0)
        assert (one.steps, one.examples) == (steps, 8 * steps)
        assert (one.outside_seconds, one.seconds) == (outside, outside + inside)
        if not calls:
            assert one.step_seconds is one.steps_per_second is one.examples_per_second is one.outside_share is None
            continue
        times = [seconds / count for _, count, seconds in calls for _ in range(count)]
        assert one.step_seconds == np.median(times)
        if one.seconds:
            assert one.steps_per_second == steps / one.seconds
            assert one.examples_per_second == 8 * steps / one.seconds
            assert one.outside_share == outside / one.seconds


def test_a_validation_between_two_steps_is_left_out():
    throughput = Throughput(clock=(clock := FakeClock()))
    throughput.on_train_begin()
    throughput.on_epoch_begin(0)
    for number in range(3):
        clock.wait(0.5)
        throughput.on_train_batch_begin(number)
        clock.wait(2)
        throughput.on_train_batch_end(number)
        clock.wait(0.25)
        throughput.on_test_begin()
        clock.wait(VALIDATION)
        throughput.on_test_end()
    throughput.on_epoch_end(0)
    (only,) = throughput.epochs
    assert (only.seconds, only.outside_seconds) == (2 * 2 + 2 * 0.75, 2 * 0.75)


def test_percentiles_are_those_of_the_steps_and_need_calls_enough():
    seconds = [9.0, *range(1, samples_needed(99) + 1)]  # the first call is none of them
    (many,) = driven([[(0, 1, one) for one in seconds]]).epochs
    assert many.step_seconds_p95 == pytest.approx(np.percentile(seconds[1:], 95))
    assert many.step_seconds_p99 == pytest.approx(np.percentile(seconds[1:], 99))
    (fewer,) = driven([[(0, 1, one) for one in seconds[:-1]]]).epochs
    assert fewer.step_seconds_p95 is not None
    assert fewer.step_seconds_p99 is None
    (few,) = driven([[(0, 10, one) for one in seconds[: samples_needed(95)]]]).epochs
    assert few.step_seconds_p95 is None  # ten steps of one call are not ten samples
    for percent, name in ((95, "step_seconds_p95"), (99, "step_seconds_p99")):
        assert str(samples_needed(percent)) in EpochThroughput.model_fields[name].description


def test_a_call_of_many_steps_weighs_as_many():
    (only,) = driven([[(0, 1, 1), (0, 1, 8), (0, 9, 18)]]).epochs
    assert only.step_seconds == 2


def test_the_last_call_ends_with_the_epoch():
    """Keras says that a call ends with its fourth step, also where the epoch has but two more."""
    (only,) = driven([[(0, 4, 1), (0, 4, 1)]], steps=6).epochs
    assert only.steps == 2


def test_the_share_of_the_ceiling_is_told():
    (only,) = driven([[(0, 1, 1), (1, 2, 3)]], flops_per_step=1e9, ceiling_flops=2e9).epochs
    assert (only.flops_per_second, only.ceiling_share) == (5e8, 0.25)
    (without,) = driven([[(0, 1, 1), (1, 2, 3)]], flops_per_step=1e9).epochs
    assert (without.flops_per_second, without.ceiling_share) == (5e8, None)
    assert "ceiling_share" not in without.scalars


def test_logs_have_the_same_names_in_each_epoch():
    clock = FakeClock()
    options = {"batch_size": 8, "flops_per_step": 1.0, "ceiling_flops": 1.0}
    logs = drive(Throughput(clock=clock, **options), clock, [[(0, 1, 1)], [(0, 1, 1), (1, 1, 2)]])
    assert [set(one) for one in logs] == [{"loss", *LOGGED}] * 2
    assert math.isnan(logs[0]["examples_per_second"])
    assert logs[1]["examples_per_second"] == 16 / 4
    logs = drive(Throughput(clock=clock), clock, [[(0, 1, 1), (0, 1, 1)]])
    assert set(logs[0]) == {"loss", *LOGGED} - {"examples_per_second", "ceiling_share"}


def test_a_summary_is_one_line():
    assert str(Throughput()) == "no epoch yet"
    calls = [(0, 1, 2.5), (0.01, 4, 0.04), (0.01, 4, 0.04)]
    summary = str(driven([calls], batch_size=8, flops_per_step=2e9, ceiling_flops=320e9))
    found = re.sub("at most [0-9.]+ [KMG]iB", "at most SIZE", summary)
    told = "epoch 1: 640 examples/s, 10 ms a step, 20.0% outside of the steps, 50.0% of the ceiling, at most SIZE"
    assert found == f"{told}; first call 2.5 s"
    assert str(driven([calls])).startswith("epoch 1: 80 steps/s, 10 ms a step, 20.0% outside")
    assert str(driven([calls[:1]])) == "epoch 1: no step but those of the first call; first call 2.5 s"
    many = str(driven([[(0, 1, 1)] * 700]))
    assert "1 s a step (p95 1 s, p99 1 s)" in many
    assert "\n" not in many


def test_another_training_begins_anew():
    clock = FakeClock()
    throughput = Throughput(clock=clock)
    drive(throughput, clock, [[(0, 1, 1), (0, 1, 1)]] * 3)
    drive(throughput, clock, [[(0, 1, 7), (0, 1, 1)]])
    assert (len(throughput.epochs), throughput.first_step_seconds) == (1, 7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "above 0. Received: batch_size=0"),
        ({"flops_per_step": -1.0}, "above 0. Received: flops_per_step=-1.0"),
        ({"flops_per_step": 1.0, "ceiling_flops": math.inf}, "above 0. Received: ceiling_flops=inf"),
        ({"flops_per_step": math.nan}, "above 0. Received: flops_per_step=nan"),
        ({"ceiling_flops": 1e12}, "flops_per_step too. Received: ceiling_flops=1000000000000.0 alone"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(options, words):
    with pytest.raises(ValueError, match=rf"^expected [^\n]*{words}$"):
        Throughput(**options)


def test_half_an_example_is_refused():
    with pytest.raises(TypeError):
        Throughput(batch_size=1.5)


def ticking():
    """A clock that goes on by a second whenever it is read: a call of any length takes a second."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def made(optimizer="sgd", kind=keras.Sequential, **options):
    keras.utils.set_random_seed(0)
    model = kind([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def of_keras(model, **options):
    return model.fit(X, Y, batch_size=4, epochs=2, verbose=0, validation_data=TEST, **options)


def in_small_calls(model, **options):
    return fit(model, X, Y, batch_size=4, epochs=2, verbose=0, validation_data=TEST, seconds_per_call=1e-9, **options)


def in_large_calls(model, **options):
    return fit(model, X, Y, batch_size=4, epochs=2, verbose=0, validation_data=TEST, seconds_per_call=100, **options)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def of_unknown_length(model, **options):
    """Nobody knows how many batches there are until they are over."""
    data = dataset().filter(lambda x, y: True)
    return model.fit(data, epochs=2, verbose=0, validation_data=TEST, shuffle=False, **options)


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(
    ("train", "steps_per_execution", "first"),
    [
        (of_keras, 1, 1),
        (of_keras, 4, 4),
        (of_keras, 16, 6),
        (in_small_calls, 1, 1),
        (in_large_calls, 1, 1),
        (of_unknown_length, 1, 1),
        (of_unknown_length, 4, 4),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_steps_and_examples_are_exact(train, steps_per_execution, first, batch_size):
    throughput = Throughput(batch_size=batch_size, clock=ticking())
    history = train(made(steps_per_execution=steps_per_execution), callbacks=[throughput]).history
    seen = min(22, 4 * first)  # examples of the first call
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(6 - first, 22 - seen), (6, 22)]
    assert throughput.first_step_seconds == 1
    last = throughput.epochs[-1]
    assert history["examples_per_second"][-1] == last.examples_per_second == 22 / last.seconds
    assert history["steps_per_second"][-1] == 6 / last.seconds
    assert len(history["val_loss"]) == len(history["outside_share"]) == 2
    assert last.memory.resident >= last.memory.resident_before > 0
    if train is of_keras:
        calls = -(-6 // steps_per_execution)
        assert (last.seconds, last.outside_seconds) == (2 * calls, calls)  # a tick in each call and one before it


OPTIMIZERS = {
    "plain": lambda: keras.optimizers.SGD(0.01),
    "accumulates": lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=2),
    "scales": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_steps_are_exact_whatever_the_optimizer(name):
    throughput = Throughput(clock=ticking())
    of_unknown_length(made(OPTIMIZERS[name](), steps_per_execution=4), callbacks=[throughput])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(2, 6), (6, 22)]


def test_steps_beyond_the_epoch_are_counted():
    """Keras makes whole calls of four, of an endless input: eight steps in an epoch of five."""
    model, throughput = made(steps_per_execution=4), Throughput(clock=ticking())
    model.fit(dataset().repeat(), steps_per_epoch=5, epochs=2, shuffle=False, verbose=0, callbacks=[throughput])
    steps = [one.steps for one in throughput.epochs]
    assert steps == [4, 8]
    assert 4 + sum(steps) == int(model.optimizer.iterations)


def test_replicas_count_together():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = made()
    of_keras(model, callbacks=[throughput := Throughput()])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(5, 18), (6, 22)]


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(("batch_size", "expected"), [(None, [None, None]), (4, [20, 24])])
def test_a_train_step_of_ones_own_counts_whole_batches_or_none(batch_size, expected):
    throughput = Throughput(batch_size=batch_size)
    history = of_keras(made(kind=Own), callbacks=[throughput]).history
    assert [one.examples for one in throughput.epochs] == expected
    assert ("examples_per_second" in history) == (batch_size is not None)
    assert all(rate > 0 for rate in history["steps_per_second"])


class Evaluating(keras.callbacks.Callback):
    """A callback that evaluates by itself, at the end of a batch or of the epoch."""

    def __init__(self, batch=None):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.model.evaluate(*TEST, verbose=0)

    def on_epoch_end(self, epoch, logs=None):
        if self.batch is None:
            self.model.evaluate(*TEST, verbose=0)


def test_an_evaluation_at_the_end_of_an_epoch_changes_nothing():
    throughput = Throughput(clock=ticking())
    made().fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[Evaluating(), throughput])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(5, 18), (6, 22)]


def test_an_evaluation_within_an_epoch_makes_batches_whole():
    throughput = Throughput(batch_size=4)
    made().fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[throughput, Evaluating(batch=3)])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(5, 20), (6, 24)]


def test_a_count_below_one_example_a_step_is_none():
    class EvaluatingOne(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                self.model.evaluate(X[:1], Y[:1], verbose=0)

    throughput = Throughput()
    made().fit(X, Y, batch_size=4, verbose=0, callbacks=[throughput, EvaluatingOne()])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(5, None)]


def test_a_training_that_is_stopped_has_the_steps_until_then():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 2

    throughput = Throughput()
    made().fit(X, Y, batch_size=4, epochs=5, verbose=0, callbacks=[throughput, Stop()])
    assert [(one.steps, one.examples) for one in throughput.epochs] == [(2, 8)]


def test_a_step_waits_for_its_input():
    """Input that takes a second for each batch: all of it is within the steps, and nothing outside."""
    clock = FakeClock()

    def batches():
        for begin in range(0, 22, 4):
            clock.wait(1)
            yield X[begin : begin + 4], Y[begin : begin + 4]

    form = (tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=form).apply(
        tf.data.experimental.assert_cardinality(6)
    )
    made().fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[throughput := Throughput(clock=clock)])
    assert [one.seconds for one in throughput.epochs] == [5, 6]
    assert [one.outside_seconds for one in throughput.epochs] == [0, 0]


def test_a_csv_logger_after_it_has_the_numbers(tmp_path):
    throughput = Throughput()
    of_keras(made(), callbacks=[throughput, keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    with (tmp_path / "log.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["examples_per_second"]) for row in rows]
    assert rates == [one.examples_per_second for one in throughput.epochs]


def scalars_in(folder):
    """What TensorBoard would read: (step, name) -> number."""
    found = {}
    for file in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[event.step, value.tag] = float(tf.make_ndarray(value.tensor))
    return found


def test_tensorboard_is_given_each_number_of_each_epoch(tmp_path):
    throughput = Throughput(log_dir=tmp_path / "logs")
    of_keras(made(), callbacks=[throughput])
    expected = {
        (one.epoch, f"throughput/{name}"): number
        for one in throughput.epochs
        for name, number in one.scalars.items()
        if not math.isnan(number)
    }
    assert scalars_in(tmp_path / "logs") == pytest.approx(expected, rel=1e-6)
    assert (1, "throughput/examples_per_second") in expected
