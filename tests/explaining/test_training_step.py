"""A training step in parts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.explaining.explanation import StepPart, TrainingStep
from tfperf.explaining.training_step import explain_step, step_words
from tfperf.exports.servable import Servable

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


def test_batches_of_another_size_are_refused(servable):
    with pytest.raises(ValueError, match=r"expected batches of 4, as is asked for\. Received: data in batches of 16"):
        explain_step(servable, 4, batches(16), time_limit=0.5)


def test_what_has_nothing_to_train_is_refused():
    net = keras.Sequential([keras.Input((8,)), keras.layers.ReLU()])
    with pytest.raises(HardwareError, match="with weights to train"):
        explain_step(Servable.from_net(net), 4, time_limit=0.5)


def test_the_words_begin_with_what_takes_longest():
    seconds = dict(zip(PARTS, [0.1, 0.02, 0.3, 0.05, 0.5, 0.03], strict=True))
    parts = tuple(StepPart(name=name, seconds=one, half_width=0.01) for name, one in seconds.items())
    first, *rest = step_words(TrainingStep(seconds=1.0, parts=parts))
    assert first.startswith("a step of fit takes 1 s and waits for: Python 50%, backward, weights 30%, forward 10%")
    assert [one.split(":")[0] for one in rest] == ["Python", "backward, weights"]
