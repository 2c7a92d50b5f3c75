"""However rows are cut into batches, each row has its own answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.exports.signature import Signature, TensorForm

SIGNATURE = Signature(
    inputs=(
        TensorForm(name="scale", shape=(2,), dtype="float32"),
        TensorForm(name="x", shape=(None, 2), dtype="float32"),
        TensorForm(name="ids", shape=(None,), dtype="int32"),
    ),
    outputs=(
        TensorForm(name="sums", shape=(None,), dtype="float32"),
        TensorForm(name="both", shape=(None, 2), dtype="float32"),
        TensorForm(name="scale_sum", shape=(), dtype="float32"),
    ),
)
SCALE = np.array([2, 3], "float32")


class Net:
    """Answers row by row, and keeps what it was called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, scale, x, ids):
        self.calls.append((scale, x, ids))
        return x.sum(axis=1) + ids, x * scale, scale.sum()


def rows_of(number):
    return SCALE, np.arange(2 * number, dtype="float32").reshape(number, 2), np.arange(number, dtype="int32") * 100


@given(st.integers(1, 40), st.integers(1, 50))
def test_every_row_is_answered_once_in_batches_of_one_size(rows, batch):
    net, arrays = Net(), rows_of(rows)
    sums, both, scale_sums = SIGNATURE.in_batches(net, arrays, batch)
    np.testing.assert_array_equal(sums, arrays[1].sum(axis=1) + arrays[2])
    np.testing.assert_array_equal(both, arrays[1] * SCALE)
    assert len(net.calls) == -(-rows // batch)
    np.testing.assert_array_equal(scale_sums, [5] * len(net.calls))
    for scale, x, ids in net.calls:
        np.testing.assert_array_equal(scale, SCALE)
        assert (len(x), len(ids)) == (batch, batch)
        assert x.flags.c_contiguous
        np.testing.assert_array_equal(x[:, 0] * 50, ids)  # rows of one example stay together
    seen = np.concatenate([ids for _, _, ids in net.calls]) // 100
    np.testing.assert_array_equal(seen, np.arange(len(seen)) % rows)  # filled up with the first rows


@given(st.integers(1, 40), st.integers(1, 50))
def test_the_first_batch_is_that_of_the_first_call(rows, batch):
    net, arrays = Net(), rows_of(rows)
    SIGNATURE.in_batches(net, arrays, batch)
    for one, other in zip(SIGNATURE.rows(arrays, range(batch)), net.calls[0], strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.integers(1, 9))
def test_inputs_without_a_batch_are_one_call(batch):
    fixed = Signature(inputs=SIGNATURE.inputs[:1], outputs=SIGNATURE.outputs[2:])
    calls = []

    def net(scale):
        calls.append(scale)
        return (scale.sum(),)

    (answers,) = fixed.in_batches(net, [SCALE], batch)
    np.testing.assert_array_equal(answers, [5])
    assert len(calls) == 1


@pytest.mark.parametrize("answers", [(), (np.zeros(4),) * 2, (np.zeros(4),) * 4])
def test_another_number_of_answers_is_an_error(answers):
    with pytest.raises(ValueError, match=r"zip\(\)"):
        SIGNATURE.in_batches(lambda *_: answers, rows_of(4), 4)


def test_rows_that_are_missing_or_too_many_in_an_answer_are_seen_by_their_number():
    for change in (-1, 1):
        found = SIGNATURE.in_batches(lambda scale, x, ids, by=change: (np.zeros(4 + by), x, 5), rows_of(8), 4)
        assert len(found[0]) == (6 if change < 0 else 8)  # the rows beyond the last are dropped
