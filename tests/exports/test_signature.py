"""The inputs that a signature makes: random ones, and examples out of given ones."""

import numpy as np
import pytest

from tfperf.exports.signature import Signature, TensorForm

SIGNATURE = Signature(
    inputs=(
        TensorForm(name="images", shape=(None, 2, None), dtype="float32"),
        TensorForm(name="ids", shape=(None,), dtype="int64"),
        TensorForm(name="scale", shape=(3,), dtype="float32"),
    ),
    outputs=(),
)

GIVEN = (
    np.arange(3 * 2 * 4, dtype="float32").reshape(3, 2, 4),
    np.array([10, 20, 30]),
    np.array([1, 2, 3], dtype="float32"),
)


@pytest.mark.parametrize(
    ("batch", "rows"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (7, [0, 1, 2, 0, 1, 2, 0])], ids=str
)
def test_given_inputs_are_cut_or_repeated_to_the_batch(batch, rows):
    images, ids, scale = SIGNATURE.examples(batch, GIVEN)
    SIGNATURE.check((images, ids, scale))
    np.testing.assert_array_equal(images, GIVEN[0][rows])
    np.testing.assert_array_equal(ids, GIVEN[1][rows])
    np.testing.assert_array_equal(scale, GIVEN[2])  # it has no batch


def test_without_given_inputs_they_are_random_and_the_same_for_one_seed():
    first, again, other = (SIGNATURE.examples(5, seed=seed) for seed in (1, 1, 2))
    SIGNATURE.check(first)
    assert [array.shape for array in first] == [(5, 2, 16), (5,), (3,)]
    assert [array.dtype for array in first] == ["float32", "int64", "float32"]
    assert set(first[1]) <= {0, 1}
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[0], SIGNATURE.random_inputs(5, seed=1)[0])


def test_random_inputs_have_the_types_that_nets_take():
    types = ("float16", "uint8", "bool", "string")
    signature = Signature(
        inputs=tuple(TensorForm(name=dtype, shape=(None, 2), dtype=dtype) for dtype in types), outputs=()
    )
    arrays = signature.random_inputs(3)
    signature.check(arrays)
    assert [array.dtype.name for array in arrays] == ["float16", "uint8", "bool", "object"]
    assert arrays[3][0, 0] == b"text"


def test_inputs_of_two_batch_sizes_are_refused():
    images, ids, scale = GIVEN
    with pytest.raises(ValueError, match=r"^expected inputs of one batch size\. Received: batches of \[2, 3\]$"):
        SIGNATURE.check((images, ids[:2], scale))
