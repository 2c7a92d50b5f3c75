"""A pipeline gives the outputs of its net, and trains as it does, for all cuts and micro-batches."""

import itertools

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.parallel import Pipeline

FEW = settings(
    max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
"""Each example traces every stage."""


def largest_difference(one, other):
    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def most_stages(net):
    from tfperf.parallel.splitting.graph import NetGraph

    graph = NetGraph(net)
    return 1 + sum(graph.may_cut(position) for position in range(1, len(graph.nodes)))


@FEW
@given(data=st.data(), micro_batches=st.sampled_from([1, 2, 4]))
def test_outputs_and_20_training_steps_are_those_of_the_net(random_nets, data, micro_batches):
    plans, build, examples = random_nets
    keras.utils.set_random_seed(1)  # of some weights every ReLU is zero, and such a net does not move
    net = build(data.draw(plans))
    stages = data.draw(st.integers(1, min(4, most_stages(net))))
    pipeline, inputs = Pipeline(net, ["CPU:0"] * stages), examples(net)
    assert largest_difference(pipeline(inputs, micro_batches), net(inputs)) < 1e-5
    before, labels = net.get_weights(), np.ones([4, 2], np.float32)
    pipeline.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    losses = [pipeline.train_on_batch(inputs, labels, micro_batches) for _ in range(20)]
    pipeline.write_back()
    trained = net.get_weights()
    net.set_weights(before)
    net.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    assert losses == pytest.approx([float(net.train_on_batch(inputs, labels)) for _ in range(20)], abs=1e-5)
    assert largest_difference(trained, net.get_weights()) < 1e-5
    assert largest_difference(before, trained) > 1e-4  # it has moved at all


def test_it_takes_dictionaries_tokens_regularizers_and_layers_without_weights():
    words = keras.Input([3], dtype="int32", name="words")
    vectors = keras.layers.Embedding(5, 4, embeddings_regularizer="l2")(words)
    mean = keras.layers.GlobalAveragePooling1D()(vectors)
    hidden = keras.layers.Dense(4, "relu", kernel_regularizer="l2")(mean)
    again = keras.layers.Embedding(5, 4)(words)  # the tokens are handed on
    joined = keras.layers.Concatenate()([hidden, keras.layers.Flatten()(again)])
    net = keras.Model({"words": words}, {"logits": keras.layers.Dense(2, name="logits")(joined)})
    inputs, labels = {"words": np.array([[0, 1, 2], [2, 3, 4]])}, {"logits": np.array([0, 1])}
    pipeline = Pipeline(net, ["CPU:0"] * most_stages(net))  # each operation in a stage of its own
    assert set(pipeline(inputs, 2)) == {"logits"}
    pipeline.compile("sgd", _cross_entropy)
    losses = [pipeline.train_on_batch(inputs, labels, 2) for _ in range(2)]
    net.compile("sgd", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)})
    assert losses == pytest.approx([float(net.train_on_batch(inputs, labels)) for _ in range(2)], abs=1e-5)


def _cross_entropy(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels["logits"], outputs["logits"], from_logits=True)


@pytest.fixture(scope="module")
def small():
    net = keras.Sequential([keras.Input([4]), *(keras.layers.Dense(4) for _ in range(3))])
    return Pipeline(net, ["CPU:0"] * 2)


def test_each_stage_works_on_each_micro_batch_in_order_and_one_at_a_time(small):
    small.compile("sgd", "mse")
    small.train_on_batch(np.ones([6, 4]), np.ones([6, 4]), 3)
    timeline = small.timeline
    assert len(timeline.tasks) == 2 * 2 * 3
    for stage in range(2):
        tasks = sorted((task for task in timeline.tasks if task.stage == stage), key=lambda task: task.start)
        assert [task.phase for task in tasks] == ["forward"] * 3 + ["backward"] * 3
        assert [task.micro_batch for task in tasks] == [0, 1, 2, 2, 1, 0]
        assert all(one.end <= other.start for one, other in itertools.pairwise(tasks))
    assert 0 <= timeline.bubble < 1


def test_stages_work_at_the_same_time(small):
    from threading import Barrier

    meeting = Barrier(2, timeout=60)  # passed only if both stages are at work at once
    originals = [stage.infer for stage in small.stages]
    waits = iter([False, True])  # the first stage from its second micro-batch on

    def first(received):
        if next(waits):
            meeting.wait()
        return originals[0](received)

    def second(received):
        if not meeting.broken and len(seen) == 0:
            seen.append(meeting.wait())
        return originals[1](received)

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.stages[0], "infer", first)
        patch.setattr(small.stages[1], "infer", second)
        small(np.ones([4, 4]), micro_batches=2)
    assert seen


def test_a_step_that_fails_leaves_nothing_behind(small):
    small.compile("sgd", "mse")
    with pytest.raises(Exception, match=r"hape"):
        small.train_on_batch(np.ones([4, 4]), np.ones([4, 3, 2, 7]), 2)
    assert all(stage._kept == {} and stage._sums == [] for stage in small.stages)
    assert np.isfinite(small.train_on_batch(np.ones([4, 4]), np.ones([4, 4]), 2))


@pytest.mark.parametrize("micro_batches", [0, 3])
def test_micro_batches_that_do_not_divide_the_batch_are_refused(small, micro_batches):
    words = rf"^expected a number of micro-batches that divides the batch of 4\. Received: {micro_batches}$"
    with pytest.raises(TfperfError, match=words):
        small(np.ones([4, 4]), micro_batches)


@pytest.mark.parametrize(
    ("optimizer", "loss"),
    [
        (keras.optimizers.SGD(global_clipnorm=1.0), "mse"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse"),
        ("sgd", keras.losses.MeanSquaredError(reduction="sum")),
    ],
)
def test_what_would_train_otherwise_than_the_whole_net_is_refused(small, optimizer, loss):
    with pytest.raises(TfperfError, match=r"^expected [^\n]* Received: [^\n]*$"):
        small.compile(optimizer, loss)


def test_training_begins_with_compile():
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    with pytest.raises(TfperfError, match=r"^expected compile"):
        Pipeline(net, ["CPU:0"]).train_on_batch(np.ones([4, 4]), np.ones([4, 4]))
