"""`train(strategy="horovod")` on ranks trains as one device does; without a part of the exchange they drift.

Nets as in check_every_step.py, whose first weights differ from rank to rank.
"""

import pickle
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from comparing import assert_same, batches, dense_net

import tfperf.parallel.horovod as hvd
from tfperf.errors import BAD_INPUT, TfperfError
from tfperf.parallel import train
from tfperf.parallel.horovod.collectives import Reduction
from tfperf.parallel.strategies.rank import main
from tfperf.parallel.strategies.starting import ERROR, TASK, TRAINED
from tfperf.parallel.strategies.task import Task

STEPS = 20
OPTIMIZERS = {
    "sgd_momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def build(optimizer, apart):
    net = dense_net()
    for variable in net.weights:
        variable.assign(variable + apart)
    net.compile(OPTIMIZERS[optimizer](), "mse")
    return net


def dataset():
    return tf.data.Dataset.from_generator(
        lambda: iter(batches(STEPS)), output_signature=(tf.TensorSpec((8, 5)), tf.TensorSpec((8, 3)))
    )


def train_on_ranks(optimizer="sgd_momentum", steps=STEPS):
    return train(lambda: build(optimizer, hvd.rank()), dataset, steps, strategy="horovod")


@pytest.mark.parametrize("optimizer", ["sgd_momentum", "adam"])
def test_a_strategy_trains_as_one_device(optimizer: str) -> None:
    alone, ranks = train(lambda: build(optimizer, 0), dataset, STEPS), train_on_ranks(optimizer)
    assert (ranks.replicas, len(ranks.digests), len(set(ranks.digests))) == (hvd.size(), hvd.size(), 1)
    assert_same([list(ranks.weights)], [list(alone.weights)], tolerance=1e-5)
    assert ranks.losses == pytest.approx(alone.losses, rel=1e-5)


def test_a_strategy_names_replicas_that_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant leaves one bias's gradient as each rank has it."""
    whole = Reduction.__call__
    monkeypatch.setattr(Reduction, "__call__", lambda self, values: [*whole(self, values[:-1]), values[-1]])
    with pytest.raises(TfperfError, match="drifted apart"):
        train_on_ranks(steps=2)


def test_a_strategy_without_a_broadcast_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "broadcast_variables", lambda variables, root_rank: None)
    with pytest.raises(TfperfError, match="drifted apart"):
        train_on_ranks(steps=2)


def divide() -> float:
    return 1 / 0


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_a_rank_leaves_what_came_of_its_task(kind: str, tmp_path: Path) -> None:
    task = Task((lambda: build("adam", 0)) if kind == "good" else divide, dataset, 2, seed=0)
    (tmp_path / TASK).write_bytes(pickle.dumps((sys.path, task.pickled())))
    assert main(tmp_path) == (0 if kind == "good" else BAD_INPUT)
    assert (tmp_path / TRAINED).exists() == (kind == "good" and hvd.rank() == 0)
    assert (tmp_path / ERROR).exists() == (kind == "bad")
    if kind == "bad":
        assert "It raised ZeroDivisionError: division by zero" in (tmp_path / ERROR).read_text()
