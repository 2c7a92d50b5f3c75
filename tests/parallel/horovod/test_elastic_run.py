"""Elastic training goes on when workers are killed, and trains what one process would: each batch counts once.

A linear net trained by SGD with momentum is a few lines of NumPy, which are the reference. All is computed in float64,
so that a batch that counted twice or not at all cannot hide in the rounding.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DEADLINE = 150
"""Seconds for one launch; it means a hang. A quiet machine takes 15, or 30 where Horovod waits for its timeout."""

BATCHES, BATCH, FEATURES = 30, 12, 5
RATE, MOMENTUM = 0.0625, 0.75  # exact in float32, through which Keras passes the momentum

ONE_EACH = {"localhost": 1, "127.0.0.1": 1}
"""Two fake hosts and their slots: names of this machine that Horovod takes for two."""

FIRST_LINES = f"""
import json, os, pathlib, signal, time
import keras, numpy as np, tensorflow as tf
import tfperf.parallel.horovod as hvd

BATCHES, BATCH, FEATURES, RATE, MOMENTUM = {BATCHES}, {BATCH}, {FEATURES}, {RATE}, {MOMENTUM}
"""

LAST_LINES = """
hvd.init()
keras.config.set_floatx("float64")
net = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=MOMENTUM)), loss="mse")
net.set_weights([np.full((FEATURES, 1), float(hvd.rank())), np.full(1, float(hvd.rank()))])  # rank 0's zeros count
examples, targets = np.load(os.environ["EXAMPLES"]).values()  # (BATCHES * BATCH, FEATURES), (BATCHES * BATCH, 1)
name, _, value = os.environ["DOOMED"].partition("=")
doomed = os.environ[name] == value

def die_at(place):
    if doomed and place == float(os.environ["DEATH"]):
        os.kill(os.getpid(), signal.SIGKILL)

state = hvd.elastic.KerasState(net, batch=-1, epoch=-1, ledger=[])
state.batch = state.epoch = 0  # what is there when training starts counts, saved or not
train(state)
if hvd.rank() == 0:
    result = {"ledger": state.ledger, "weights": [weights.tolist() for weights in net.get_weights()]}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
"""

LOOP = """
@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2)
    net.optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

@hvd.elastic.run
def train(state):
    while state.batch < BATCHES:
        die_at(state.batch)
        mine = slice(state.batch * BATCH + hvd.rank(), (state.batch + 1) * BATCH, hvd.size())
        step(examples[mine], targets[mine])
        state.ledger.append((state.batch, hvd.size()))
        state.batch += 1
        if state.batch % 5 == 0:
            die_at(state.batch - 0.5)  # after its last batch; the others are in the commit then
            state.commit()
"""

INVITATION = """
@hvd.elastic.run
def train(state):
    hosts = pathlib.Path(os.environ["HOSTS"])
    while state.batch < BATCHES:
        if state.batch == 17 and "127.0.0.1" not in hosts.read_text():
            with hosts.open("a") as file:
                file.write("127.0.0.1:1\\n")
            while True:
                state.check_host_updates()  # raises when the new host is seen; nothing was committed since batch 15
                time.sleep(0.05)
        mine = slice(state.batch * BATCH + hvd.rank(), (state.batch + 1) * BATCH, hvd.size())
        net.train_on_batch(examples[mine], targets[mine])
        state.ledger.append((state.batch, hvd.size()))
        state.batch += 1
        if state.batch % 5 == 0:
            state.commit()

def train_or_die(state, train=train):
    die_at(state.batch)  # the new worker, which the other one waits for to give it the state
    train(state)

train = train_or_die
"""

FIT = """
EPOCHS, PER_EPOCH = 3, BATCHES // 3

class Fate(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        die_at(state.epoch * PER_EPOCH + state.batch)

class Ledger(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        state.ledger.append((state.epoch * PER_EPOCH + state.batch, hvd.size()))

@hvd.elastic.run
def train(state):
    callbacks = [
        Fate(), Ledger(), hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=4),
    ]
    while state.epoch < EPOCHS:
        epoch = slice((state.epoch * PER_EPOCH + state.batch) * BATCH, (state.epoch + 1) * PER_EPOCH * BATCH)
        x, y = (array[epoch][hvd.rank()::hvd.size()] for array in (examples, targets))
        net.fit(x, y, batch_size=BATCH // hvd.size(), epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
"""


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Examples and targets of a linear law with noise: (BATCHES * BATCH, FEATURES), (BATCHES * BATCH, 1)."""
    generator = np.random.default_rng(5)
    examples = generator.standard_normal((BATCHES * BATCH, FEATURES))
    noise = generator.standard_normal((BATCHES * BATCH, 1))
    return examples, examples @ generator.standard_normal((FEATURES, 1)) + noise


@pytest.fixture
def train(launch_ranks, problem, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that trains on fake hosts until some of the workers are killed, and on; the ledger and the weights."""

    def train(program: str, *, hosts: dict[str, int], doomed: str, death: float, launcher: str) -> dict[str, Any]:
        files = {name: tmp_path / name for name in ("program.py", "examples.npz", "result.json", "hosts", "hosts.sh")}
        files["program.py"].write_text(FIRST_LINES + program + LAST_LINES)
        np.savez(files["examples.npz"], *problem)
        files["hosts"].write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        files["hosts.sh"].write_text(f"#!/bin/sh\ncat '{files['hosts']}'\n")
        files["hosts.sh"].chmod(0o700)
        returncode, output = launch_ranks(
            [sys.executable, "-u", str(files["program.py"])],
            folder=tmp_path,
            np=sum(hosts.values()),
            deadline=DEADLINE,
            launcher=launcher,
            options=["--min-np", "1", "--host-discovery-script", str(files["hosts.sh"])],
            env={
                "DOOMED": doomed,
                "DEATH": str(death),
                "EXAMPLES": str(files["examples.npz"]),
                "HOSTS": str(files["hosts"]),
                "RESULT": str(files["result.json"]),
                # where two workers outlive a death, Horovod 0.28.1 tells one of them only by this
                "HOROVOD_GLOO_TIMEOUT_SECONDS": "15",
            },
        )
        assert returncode == 0, output
        assert "SIGKILL" in output or "status code 137" in output, f"nobody was killed\n{output}"
        return json.loads(files["result.json"].read_text())

    return train


def by_one_process(problem: tuple[np.ndarray, np.ndarray], batches: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The weights (FEATURES, 1) and bias (1,) after SGD with momentum over these batches, from zeros."""
    weights, velocity = np.zeros((FEATURES + 1, 1)), np.zeros((FEATURES + 1, 1))
    examples, targets = problem
    for batch in batches:
        part = slice(batch * BATCH, (batch + 1) * BATCH)
        x = np.hstack([examples[part], np.ones((BATCH, 1))])
        velocity = MOMENTUM * velocity - RATE * 2 / BATCH * x.T @ (x @ weights - targets[part])
        weights = weights + velocity
    return weights[:-1], weights[-1]


def check(result: dict[str, Any], problem, *, workers: tuple[int, int], kept: tuple[int, ...]) -> None:
    """Each batch is in the ledger once, in order, and in the weights once; so many were kept at the death."""
    assert [batch for batch, _ in result["ledger"]] == list(range(BATCHES))
    counts = [number for _, number in result["ledger"]]
    before = counts.count(workers[0])
    assert counts == [workers[0]] * before + [workers[1]] * (BATCHES - before)
    assert before in kept
    for ours, theirs in zip(result["weights"], by_one_process(problem, range(BATCHES)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


# A death in batch 17 goes back to the commit of 15. One in the commit of 20: the others have saved, or have not yet.
@pytest.mark.parametrize(
    ("launcher", "doomed", "death", "kept"),
    [
        ("tfperf launch", "HOROVOD_RANK=0", 17, (15,)),
        ("horovodrun", "HOROVOD_RANK=1", 19.5, (15, 20)),
    ],
)
def test_a_loop_goes_on_when_one_of_two_workers_is_killed(train, problem, launcher, doomed, death, kept) -> None:
    result = train(LOOP, hosts=ONE_EACH, doomed=doomed, death=death, launcher=launcher)
    check(result, problem, workers=(2, 1), kept=kept)


def test_a_loop_goes_on_when_both_workers_of_one_of_two_hosts_are_killed(train, problem) -> None:
    hosts = {"localhost": 2, "127.0.0.1": 2}
    result = train(LOOP, hosts=hosts, doomed="HOROVOD_HOSTNAME=127.0.0.1", death=17, launcher="tfperf launch")
    check(result, problem, workers=(4, 2), kept=(15,))


def test_fit_goes_on_when_one_of_two_workers_is_killed(train, problem) -> None:
    result = train(FIT, hosts=ONE_EACH, doomed="HOROVOD_RANK=1", death=16, launcher="tfperf launch")
    check(result, problem, workers=(2, 1), kept=(14,))


def test_a_loop_goes_on_when_a_new_worker_is_killed_while_it_joins(train, problem) -> None:
    doomed = "HOROVOD_HOSTNAME=127.0.0.1"
    result = train(INVITATION, hosts={"localhost": 1}, doomed=doomed, death=0, launcher="tfperf launch")
    check(result, problem, workers=(1, 1), kept=(BATCHES,))


def test_the_reference_tells_a_batch_that_counts_twice(problem) -> None:
    once, twice = by_one_process(problem, range(BATCHES)), by_one_process(problem, [*range(16), *range(15, BATCHES)])
    assert not np.allclose(once[0], twice[0], rtol=1e-3)
