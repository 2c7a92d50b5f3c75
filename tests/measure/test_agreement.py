"""Whether outputs agree with their reference."""

import math

import numpy as np
import pytest

from tfperf.errors import MeasurementError
from tfperf.measure import check_agreement


def test_equal_outputs_agree() -> None:
    logits = np.random.default_rng(0).normal(size=(8, 10))
    agreement = check_agreement("graph", logits, logits)
    assert agreement.passed
    assert (agreement.largest_absolute_error, agreement.relative_error, agreement.same_top1_share) == (0.0, 0.0, 1.0)
    assert str(agreement) == "graph agrees: relative error 0, tolerance 1e-05"


def test_the_error_is_measured_by_the_largest_reference() -> None:
    agreement = check_agreement("x", np.array([100.0, 0.002]), np.array([100.0, 0.001]), tolerance=1e-4)
    assert agreement.largest_absolute_error == pytest.approx(0.001)
    assert agreement.relative_error == pytest.approx(1e-5)
    assert agreement.passed


@pytest.mark.parametrize(("error", "passed"), [(0.9e-3, True), (1.1e-3, False)])
def test_the_tolerance_decides(error: float, passed: bool) -> None:
    agreement = check_agreement("x", [1.0 + error, 0.5], [1.0, 0.5], tolerance=1e-3)
    assert agreement.passed is passed
    assert ("agrees" in str(agreement)) is passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_agrees(value: float) -> None:
    agreement = check_agreement("x", [1.0, value], [1.0, 2.0], tolerance=1e9)
    assert not agreement.passed
    assert agreement.relative_error is None
    assert "not a finite number" in str(agreement)


@pytest.mark.parametrize("outputs", [[1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0], {"a": [1.0], "b": [2.0]}])
def test_another_shape_never_agrees(outputs: object) -> None:
    assert not check_agreement("x", outputs, np.array([1.0, 2.0]), tolerance=1e9).passed


@pytest.mark.parametrize("reference", [[math.nan], [], [1.0, math.inf]])
def test_a_reference_that_says_nothing_is_an_error(reference: list) -> None:
    with pytest.raises(MeasurementError, match="reference for 'x'"):
        check_agreement("x", reference, reference)


def test_every_leaf_is_looked_at() -> None:
    reference = {"a": np.array([1.0, 2.0]), "b": (np.array([3.0]), np.array([4.0]))}
    assert check_agreement("x", reference, reference).passed
    changed = {"a": np.array([1.0, 2.0]), "b": (np.array([3.0]), np.array([4.5]))}
    assert not check_agreement("x", changed, reference).passed


def test_leaves_are_matched_by_their_keys() -> None:
    one, two = np.array([1.0]), np.array([2.0])
    assert check_agreement("x", {"b": two, "a": one}, {"a": one, "b": two}).passed


def test_other_keys_never_agree() -> None:
    # The structure is another, though the arrays have equal shapes.
    one = np.array([1.0])
    assert not check_agreement("x", {"logits": one}, {"probabilities": one}).passed


def test_a_small_output_is_measured_by_itself() -> None:
    assert not check_agreement("x", (np.array([1e6]), np.array([0.1])), (np.array([1e6]), np.array([0.2]))).passed


@pytest.mark.parametrize(("wrong", "share"), [(0, 0.0), (1, 0.02), (50, 1.0)])
def test_of_whole_numbers_the_share_that_differ_is_the_error(wrong: int, share: float) -> None:
    """An id is no quantity: 989 for 990 is as wrong as 0."""
    ids = np.arange(950, 1000)
    found = check_agreement("net", np.where(np.arange(50) < wrong, ids - 1, ids), ids, 1e-2)
    assert found.relative_error == share
    assert found.passed is (wrong == 0)


def test_floats_beside_whole_numbers_are_quantities() -> None:
    assert check_agreement("net", [3.00001, 4.0], [3, 4], 1e-4).passed


def test_top1_counts_rows() -> None:
    ours, reference = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 2.0], [1.0, 2.0]])
    assert check_agreement("x", ours, reference, tolerance=10).same_top1_share == 0.5
    assert check_agreement("x", ours[0], reference[0]).same_top1_share is None
    assert check_agreement("x", ours[:, :1], reference[:, :1]).same_top1_share is None


def test_top1_counts_the_rows_of_all_outputs_along_their_last_axis() -> None:
    tokens = np.arange(24.0).reshape(2, 3, 4)  # 6 rows
    scores = np.array([[1.0, 2.0], [2.0, 1.0]])
    agreement = check_agreement("x", (tokens, scores[::-1]), (tokens, scores), tolerance=10)
    assert agreement.same_top1_share == 6 / 8
    other = tokens.copy()
    other[1, 2] = other[1, 2, ::-1]
    assert check_agreement("x", {"t": other, "s": scores}, {"t": tokens, "s": scores}, 10).same_top1_share == 7 / 8


@pytest.mark.parametrize(
    "others",
    [
        np.ones(3),
        np.ones((3, 1)),
        np.ones((3, 0)),
        np.ones((0, 3)),
        np.eye(3, dtype=int),
        np.eye(3) > 0,
        np.eye(3) * 1j,
    ],
    ids=["numbers", "columns of one", "of none", "no rows", "whole numbers", "truth values", "complex"],
)
def test_outputs_that_have_no_rows_of_several_floats_have_no_largest(others: np.ndarray) -> None:
    assert check_agreement("x", others, others).same_top1_share is None
    ours, reference = (others, np.array([[1.0, 2.0]])), (others, np.array([[2.0, 1.0]]))
    assert check_agreement("x", ours, reference, tolerance=10).same_top1_share == 0


def test_top1_is_that_of_small_floats_too() -> None:
    half = np.eye(3).astype(pytest.importorskip("ml_dtypes").bfloat16)  # which TensorFlow brings
    assert check_agreement("x", half, half).same_top1_share == 1


def test_a_reference_of_zeros() -> None:
    assert check_agreement("x", [0.0, 0.0], [0.0, 0.0]).passed
    assert not check_agreement("x", [0.0, 1e-30], [0.0, 0.0]).passed


def test_complex_outputs_keep_their_imaginary_part() -> None:
    assert not check_agreement("x", np.array([1 + 1j]), np.array([1 + 2j])).passed


@pytest.mark.parametrize(
    ("ours", "share"),
    [([1.0, 1.0, 0.2], 1), ([0.9999999, 1.0, 0.2], 1), ([1.0, 0.9, 0.2], 1), ([1.0, 0.9, 1.1], 0)],
)
def test_where_several_are_the_largest_any_of_them_is(ours: list, share: int) -> None:
    assert check_agreement("ties", np.array([ours]), np.array([[1.0, 1.0, 0.2]])).same_top1_share == share


def test_pixels_are_quantities() -> None:
    pixels = np.arange(256, dtype="uint8").reshape(1, 16, 16)
    brighter = np.minimum(pixels, 254) + np.uint8(1)
    assert check_agreement("brighter", brighter, pixels).relative_error == pytest.approx(1 / 255)


def test_ids_that_float64_has_no_room_for_are_told_apart() -> None:
    ids = np.array([2**60, 2**60 + 2])
    assert check_agreement("ids", ids + 1, ids).relative_error == 1
    assert check_agreement("ids", ids, ids).relative_error == 0
