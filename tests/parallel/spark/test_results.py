"""What the ranks of a training bring home, and what is made of it."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel.spark import NodeFunction, Notes, Training


class Net:
    """A net of two weights, as Keras gives and takes them."""

    def __init__(self):
        self.weights = [np.zeros((2, 3)), np.zeros(())]

    def get_weights(self):
        return self.weights


def flat(weights):
    """All numbers of a list of arrays."""
    return [float(number) for array in weights for number in array.ravel()]


def test_notes_keep_the_weights_after_the_early_steps_and_at_the_end():
    net, notes = Net(), Notes(early=2)
    for step in range(1, 4):
        net.weights = [np.full((2, 3), float(step)), np.array(-float(step))]
        notes.step(net)
    ends, early, final = notes.all()
    assert len(ends) == 3
    assert ends == sorted(ends)
    assert flat(early) == [2.0] * 6 + [-2.0]
    assert flat(final) == [3.0] * 6 + [-3.0]


def test_notes_take_part_in_fit():
    keras = pytest.importorskip("keras")
    net, notes = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")]), Notes(early=1)
    net.compile(keras.optimizers.SGD(0.25), "mse")
    net.fit(np.ones([4, 1]), np.zeros([4, 1]), batch_size=2, epochs=1, verbose=0, callbacks=[notes.callback()])
    ends, early, final = notes.all()
    assert len(ends) == 2
    assert flat(early) == [0.5, -0.5]  # the gradient of both is 2 at first, and then there is nothing left to learn
    assert flat(final) == flat(net.get_weights())


def ranks_of(*weights):
    """Ranks that have the same early weights, and these at the end; their last step is slow, the median is not."""
    ends = [110.0, 110.5, 111.0, 115.0]
    return [([end + rank for end in ends], [np.zeros(2)], final) for rank, final in enumerate(weights)]


def test_a_training_is_split_at_its_first_and_its_last_step(monkeypatch):
    monkeypatch.setattr("tfperf.parallel.spark.results.time.time", lambda: 120.0)
    training = Training.ended_now(100.0, ranks_of([np.ones(2)], [np.ones(2)]))
    assert training.seconds == {"up to the first step": 10.0, "training": 5.0, "after the last step": 5.0}
    assert training.overhead == 15.0
    assert training.steps_per_second == 2.0
    assert (flat(training.early), flat(training.final), training.ranks) == ([0.0, 0.0], [1.0, 1.0], 2)
    assert training.figures(batch=256) == {
        "ranks with equal weights": 2,
        "images/s": 512.0,
        "seconds up to the first step": 10.0,
        "seconds training": 5.0,
        "seconds after the last step": 5.0,
    }


def test_ranks_that_differ_in_the_last_bit_are_an_error():
    most = [np.ones(2), np.ones(3, np.float32)]
    odd = [np.ones(2), np.array([1, 1, np.nextafter(np.float32(1), np.float32(2))])]
    with pytest.raises(TfperfError, match=r"equal weights on all ranks, those of \[1, 3\] differ from rank 0's"):
        Training.ended_now(100.0, ranks_of(most, odd, most, odd))


def test_results_come_back_in_the_order_of_the_executors():
    with NodeFunction(divmod) as node:
        sent = pickle.loads(pickle.dumps(node))  # as Spark sends it to its executors
        for executor in (10, 9, 0):
            sent((executor, 4), SimpleNamespace(executor_id=executor))
        assert node.results() == [(0, 0), (2, 1), (2, 2)]


def test_its_folder_ends_with_the_block():
    with NodeFunction(divmod) as node:
        folder = Path(node._folder)
        with pytest.raises(ZeroDivisionError):
            node((1, 0), SimpleNamespace(executor_id=0))
        assert folder.is_dir()
    assert not folder.exists()
