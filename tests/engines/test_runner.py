"""A runner checks what it is given, and gives arrays that are the caller's."""

import numpy as np
import pytest

from tfperf.engines import Plan, Runner
from tfperf.exports.signature import Signature, TensorForm

SIGNATURE = Signature(
    inputs=(
        TensorForm(name="ids", shape=(None, 3), dtype="int32"),
        TensorForm(name="scale", shape=(1,), dtype="float32"),
    ),
    outputs=(TensorForm(name="sums", shape=(None,), dtype="float32"),),
)


class Engine:
    """Sums the ids, into memory that it uses again if it is told to."""

    def __init__(self, reuses=False, batch=None):
        self.memory = np.zeros(4, "float32")
        self.closed = 0
        plan = Plan(engine="litert", batch=batch)
        run = self.into_memory if reuses else self.afresh
        self.runner = Runner(plan, SIGNATURE, run, proof={}, reuses_outputs=reuses, close=self.close)

    def afresh(self, ids, scale):
        return (ids.sum(axis=1).astype("float32") * scale,)

    def into_memory(self, ids, scale):
        self.memory[: len(ids)] = self.afresh(ids, scale)[0]
        return (self.memory[: len(ids)],)

    def close(self):
        self.closed += 1


def ids(batch=2, value=1):
    return np.full((batch, 3), value, "int32")


ONE = np.ones(1, "float32")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), r"expected 2 input arrays \(ids .*; scale .*\)\. Received: 0"),
        ((ids(),), "Received: 1"),
        ((ids(), ONE, ONE), "Received: 3"),
        ((ids()[:, :2], ONE), r"expected the input ids \(any, 3\) int32\. Received: an array \(2, 2\)"),
        ((ids()[0], ONE), r"an array \(3,\)"),
        ((ids().astype("int64"), ONE), "of int64"),
        ((ids(), np.ones(2, "float32")), r"the input scale \(1\) float32\. Received: an array \(2,\)"),
    ],
)
def test_what_the_net_does_not_take_never_reaches_the_engine(arrays, message):
    engine = Engine()
    engine.runner.run = pytest.fail
    with pytest.raises(ValueError, match=message):
        engine.runner(*arrays)


def test_the_batch_is_the_plans():
    engine = Engine(batch=2)
    assert engine.runner(ids(2), ONE)[0].shape == (2,)
    with pytest.raises(
        ValueError, match=r"^expected a batch of 2, for which litert, batch 2 was built; .*\. Received: 3$"
    ):
        engine.runner(ids(3), ONE)
    assert Engine().runner(ids(3), ONE)[0].shape == (3,)


@pytest.mark.parametrize("reuses", [False, True])
def test_answers_are_the_callers_own(reuses):
    runner = Engine(reuses).runner
    (first,) = runner(ids(value=1), ONE)
    (second,) = runner(ids(value=5), ONE)
    np.testing.assert_array_equal(first, [3, 3])
    np.testing.assert_array_equal(second, [15, 15])
    assert not np.shares_memory(first, second)


def test_run_itself_copies_nothing():
    engine = Engine(reuses=True)
    assert np.shares_memory(*engine.runner.run(ids(), ONE), engine.memory)


def test_lists_are_taken_where_they_make_the_right_array():
    with pytest.raises(ValueError, match="int64"):
        Engine().runner([[1, 2, 3]], ONE)
    np.testing.assert_array_equal(Engine().runner(ids(1), [np.float32(2)])[0], [6])


def test_a_closed_runner_cannot_be_called():
    engine = Engine()
    with engine.runner as runner:
        assert runner is engine.runner
        runner(ids(), ONE)
        assert engine.closed == 0
    for call in (engine.runner, engine.runner.run):
        with pytest.raises(ValueError, match=r"^expected an open runner, this one was closed$"):
            call(ids(), ONE)
    engine.runner.close()
    assert engine.closed == 1


def test_it_is_closed_after_an_error_too():
    engine = Engine()
    with pytest.raises(ZeroDivisionError), engine.runner:
        raise ZeroDivisionError
    assert engine.closed == 1
