"""Training under a strategy by name: each gives the weights of one device, and a part that is missing is found."""

import json
import os
import signal
import time
from unittest import mock

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from tfperf.errors import TfperfError
from tfperf.nets import get_net
from tfperf.parallel import STRATEGIES, train
from tfperf.parallel.strategies import replicas
from tfperf.parallel.strategies.replicas import share
from tfperf.processes import WorkerProcesses

STEPS, BATCH, EXACT = 20, 32, 1e-5
SECONDS_TO_NAME_THE_DEAD = 30


def lenet(optimizer):
    net = get_net("lenet")
    net.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def with_sgd():
    return lenet(keras.optimizers.SGD(0.05, momentum=0.9))


def with_adam():
    return lenet(keras.optimizers.Adam(1e-3))


def batches():
    """Half of the batches of a training; each class has a pixel of its own that is bright."""
    generator = np.random.default_rng(0)
    images = generator.random((STEPS * BATCH // 2, 28, 28, 1), np.float32)
    labels = generator.integers(10, size=len(images))
    images[np.arange(len(images)), labels + 9, labels + 9] += 5
    options = tf.data.Options()
    options.autotune.enabled = False  # an iterator may end only when the tuner wakes
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH).with_options(options)


def distance(one, other):
    """The norm of the difference of all weights, as a share of their norm."""
    left, right = (np.concatenate([array.ravel() for array in trained.weights]) for trained in (one, other))
    return float(np.linalg.norm(left - right) / np.linalg.norm(left))


@pytest.fixture(scope="module")
def fresh():
    """A function that calls another one in a process where TensorFlow has two logical CPU devices from its start."""
    with WorkerProcesses(1) as workers:
        workers.run(two_devices, [()])
        yield lambda function, *arguments: workers.run(function, [arguments])[0]


def two_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)])


@pytest.fixture(scope="module")
def alone(fresh):
    """The trainings of one device, by `build`."""
    return {build: fresh(train, build, batches, STEPS) for build in (with_sgd, with_adam)}


def train_in_two(build, strategy):
    return train(build, batches, STEPS, strategy=strategy)


@pytest.mark.parametrize("build", [with_sgd, with_adam])
def test_two_mirrored_replicas_train_as_one_device(fresh, alone, build):
    assert_same(fresh(train_in_two, build, "mirrored"), alone[build])


@pytest.mark.parametrize(("strategy", "build"), [("multi_worker", with_adam), ("parameter_server", with_sgd)])
def test_two_processes_train_as_one_device(alone, strategy, build):
    before = set(psutil.Process().children(recursive=True))
    assert_same(train_in_two(build, strategy), alone[build], copies=1 if strategy == "parameter_server" else 2)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_two_horovod_ranks_train_as_one_device(alone):
    pytest.importorskip("horovod", reason="needs Horovod")
    assert_same(train_in_two(with_sgd, "horovod"), alone[with_sgd])


def assert_same(two, one, copies=2):
    assert distance(one, two) < EXACT
    assert two.losses == pytest.approx(one.losses, rel=EXACT)
    assert one.losses[-1] < one.losses[0]  # it did train
    assert (one.replicas, two.replicas, len(one.digests), len(two.digests)) == (1, 2, 1, copies)
    assert len(set(two.digests)) == 1
    assert len(one.seconds) == len(two.seconds) == STEPS


def test_one_device_trains_as_fit_does(fresh):
    assert fresh(distance_from_fit) < EXACT


def distance_from_fit():
    trained = train(with_adam, batches, STEPS)
    keras.utils.set_random_seed(0)
    net = with_adam()
    net.fit(batches(), epochs=2, shuffle=False, verbose=0)
    return distance(trained, trained.__class__(net.get_weights(), (), (), 1, ()))


def dense():
    net = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def train_two_nets():
    return [train(build, batches, 2, strategy="mirrored").replicas for build in (with_sgd, dense)]


def test_nets_may_be_trained_one_after_the_other_in_one_process(fresh):
    assert fresh(train_two_nets) == [2, 2]


def train_without_an_exchange():
    """One bias has on each replica the gradient of its own part."""
    whole = TFOptimizer._all_reduce_sum_gradients

    def all_but_one(self, pairs):
        return [
            own if number == 3 else summed
            for number, (own, summed) in enumerate(zip(pairs, whole(self, pairs), strict=True))
        ]

    with mock.patch.object(TFOptimizer, "_all_reduce_sum_gradients", all_but_one):
        return error_of(train_in_two, with_sgd, "mirrored")


def error_of(function, *arguments):
    """The words of the error that it must raise."""
    with pytest.raises(TfperfError) as told:
        function(*arguments)
    return str(told.value)


def test_replicas_that_drift_are_an_error(fresh):
    words = fresh(train_without_an_exchange)
    assert words.startswith(f"expected equal weights on all replicas after {STEPS} steps. Received: ")
    assert "the replicas have drifted apart" in words


def train_without_a_bias():
    """No replica updates one bias: they stay equal."""
    whole = replicas.loss_and_gradients

    def all_but_one(*arguments, **options):
        loss, gradients = whole(*arguments, **options)
        return loss, [0 * one if number == 3 else one for number, one in enumerate(gradients)]

    with mock.patch.object(replicas, "loss_and_gradients", all_but_one):
        return train_in_two(with_sgd, "mirrored")


def test_a_bias_that_is_not_updated_is_seen_against_one_device(fresh, alone):
    assert distance(alone[with_sgd], fresh(train_without_a_bias)) > 100 * EXACT


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4))
def test_shares_are_equal_and_make_up_the_batch(replicas, size):
    batch = {"a": tf.range(replicas * size), "b": (tf.random.normal([replicas * size, 3]),)}
    shares = [share(batch, replica, replicas) for replica in range(replicas)]
    assert {len(one["a"]) for one in shares} == {size}
    for whole, *parts in zip(*map(tf.nest.flatten, [batch, *shares]), strict=True):
        np.testing.assert_array_equal(tf.concat(parts, 0), whole)


def dies(strategy):
    """Batches at whose second a worker of this strategy is killed."""

    def batches_then_death():
        whole = list(batches().take(1))

        def generate():
            yield whole[0]
            if strategy == "multi_worker" and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if strategy == "horovod" and os.environ["HOROVOD_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if strategy == "parameter_server":
                servers = [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]
                servers[0].kill()
            yield from whole * STEPS

        return tf.data.Dataset.from_generator(
            generate, output_signature=tuple(tf.TensorSpec(one.shape, one.dtype) for one in whole[0])
        )

    return batches_then_death


@pytest.mark.parametrize(
    ("strategy", "name"), [("multi_worker", "worker 1"), ("parameter_server", "worker 0"), ("horovod", "rank 1")]
)
def test_a_worker_that_dies_is_named_and_nothing_is_left(strategy, name):
    if strategy == "horovod":
        pytest.importorskip("horovod", reason="needs Horovod")
    before, start = set(psutil.Process().children(recursive=True)), time.monotonic()
    with pytest.raises(TfperfError, match=f"{name} .*SIGKILL") as told:
        train(with_sgd, dies(strategy), STEPS, strategy=strategy)
    assert "\n" not in str(told.value)
    assert time.monotonic() - start < 4 * SECONDS_TO_NAME_THE_DEAD  # with the start of all processes
    assert set(psutil.Process().children(recursive=True)) <= before


def fails():
    raise ZeroDivisionError("of the build")


def uncompiled():
    return get_net("lenet")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "two"}, f"expected a strategy of {', '.join(STRATEGIES)}. Received: 'two'"),
        ({"steps": 0}, "expected steps to be at least 1. Received: steps=0"),
        ({"workers": 0}, "expected workers to be at least 1. Received: workers=0"),
        ({"build": fails}, "expected build() to give a compiled Keras model with its weights. It raised ZeroDivisionE"),
        ({"build": uncompiled}, "expected build() to give a compiled Keras model with its weights. Received: another"),
        ({"build": dict}, "expected build() to give a compiled Keras model with its weights. Received: {}"),
        ({"batches": fails}, "expected batches() to give a tf.data.Dataset of batches. It raised ZeroDivisionError"),
        ({"batches": dict}, "expected batches() to give a tf.data.Dataset of batches. Received: {}"),
        (
            {"batches": lambda: batches().take(0)},
            "expected batches() to give a tf.data.Dataset of batches. Received: an",
        ),
        (
            {"batches": lambda: batches().unbatch().batch(3), "strategy": "mirrored"},
            "expected batches that 2 replicas can share equally. Received: a batch of 3 examples",
        ),
        ({"strategy": "mirrored", "workers": 3}, "expected 3 logical CPU devices, TensorFlow has started with 2"),
    ],
)
def test_bad_input_is_one_line(fresh, arguments, words):
    told = fresh(error_of, train_with, arguments)
    assert words in told
    assert "\n" not in told


def train_with(arguments):
    train(**{"build": with_sgd, "batches": batches, "steps": 2} | arguments)


def test_what_cannot_be_sent_to_other_processes_is_one_line():
    dataset = batches()
    with pytest.raises(TfperfError, match="expected build and batches to be functions that make the net") as told:
        train(with_sgd, lambda: dataset, 2, strategy="multi_worker")
    assert "\n" not in str(told.value)
