"""Whether two runs of one net give the same answers. No speed without this check."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tfperf.errors import MeasurementError
from tfperf.measure.value import Name, Value

__all__ = ["Agreement", "check_agreement"]


class Agreement(Value):
    """How far the outputs of a candidate are from those of its reference."""

    candidate: Name
    largest_absolute_error: float | None = Field(ge=0, description="None: some output is not a finite number")
    relative_error: float | None = Field(
        ge=0,
        description="largest absolute error by the largest reference output; of whole numbers the share that differ",
    )
    same_top1_share: float | None = Field(
        ge=0, le=1, description="share of rows along the last axis with the same largest output; None: there are none"
    )
    tolerance: float = Field(ge=0, description="largest relative error that passes")

    @property
    def passed(self) -> bool:
        """Whether the candidate's answers are the reference's, within the tolerance. NaN never is."""
        return self.relative_error is not None and self.relative_error <= self.tolerance

    def __str__(self) -> str:
        if self.relative_error is None:
            return f"{self.candidate}: an output is not a finite number, or its shape differs"
        word = "agrees" if self.passed else "DISAGREES"
        return f"{self.candidate} {word}: relative error {self.relative_error:.2g}, tolerance {self.tolerance:.2g}"


def check_agreement(candidate: str, outputs: Any, reference: Any, tolerance: float = 1e-5) -> Agreement:
    """Compare outputs with those of the reference.

    The relative error is the largest absolute error divided by the largest absolute reference output:
    the error of a small logit beside large ones is measured by the large ones, as it decides nothing. Where both are
    truth values or whole numbers of 4 bytes or more, such as the ids of classes or tokens, it is the share of them that
    differ: an id beside the right one is as wrong as any other. Shorter ones are taken for pixels and sound.

    The rows of an output lie along its last axis: of shape (batch, classes) or (batch, tokens, classes) each has the
    scores of one decision. The share of them with the same largest is over all outputs of floating numbers that have
    two axes or more, and two numbers or more in a row; where several of the reference are the largest, any of them is.

    Args:
        candidate: name of what gave `outputs`.
        outputs, reference: an array or tensor, or a list, tuple or dictionary of them, of equal structure and shapes.
        tolerance: largest relative error that passes, without unit.

    Raises:
        MeasurementError: the reference itself is not finite: nothing can be said.
    """
    ours, theirs = dict(_leaves(outputs)), dict(_leaves(reference))
    scored = [place for place, array in theirs.items() if _has_scores(array)]
    same_form = {place: array.shape for place, array in ours.items()} == {k: v.shape for k, v in theirs.items()}
    wrong = {  # of names, which are compared as they are: float64 has no room for all of them
        place: np.count_nonzero(ours[place] != array) / max(array.size, 1)
        for place, array in theirs.items()
        if same_form and _has_names(array) and ours[place].dtype.kind in "biu"
    }
    ours, theirs = ({place: _exact(array) for place, array in arrays.items()} for arrays in (ours, theirs))
    if not theirs or any(not np.isfinite(array).all() for array in theirs.values()):
        raise MeasurementError(f"the reference for '{candidate}' has outputs that are not finite; check its input")
    absolute = relative = top1 = None
    if same_form and all(np.isfinite(array).all() for array in ours.values()):
        errors = {place: _largest(ours[place] - array) for place, array in theirs.items()}
        absolute = max(errors.values())
        relative = max(
            wrong[place] if place in wrong else _share(errors[place], _largest(array))
            for place, array in theirs.items()
        )
        if not math.isfinite(relative):
            relative = None
        same = [_choose_a_largest(ours[place], theirs[place]) for place in scored]
        rows = sum(one.size for one in same)
        top1 = sum(int(one.sum()) for one in same) / rows if rows else None
    return Agreement(
        candidate=candidate,
        largest_absolute_error=absolute,
        relative_error=relative,
        same_top1_share=top1,
        tolerance=tolerance,
    )


def _leaves(outputs: Any, place: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Place in the nest -> array, for each array of a nest."""
    if isinstance(outputs, Mapping):
        for key in outputs:
            yield from _leaves(outputs[key], f"{place}.{key}")
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str | bytes):
        for index, item in enumerate(outputs):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield place, np.asarray(outputs)


def _has_scores(array: NDArray[Any]) -> bool:
    """Whether it has rows of several floating numbers; the kind of bfloat16 is none of NumPy's own."""
    return array.dtype.kind not in "biuc" and array.ndim > 1 and array.shape[-1] > 1


def _has_names(array: NDArray[Any]) -> bool:
    """Whether its numbers name something, so that none is nearer to another than a third."""
    return array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.dtype.itemsize >= 4)


def _choose_a_largest(ours: NDArray[Any], theirs: NDArray[Any]) -> Any:
    """For each row whether the largest of ours is one of the largest of theirs."""
    chosen = np.take_along_axis(theirs, ours.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.equal(chosen, theirs.max(axis=-1))


def _exact(array: NDArray[Any]) -> NDArray[Any]:
    """In float64, or complex128 where it is complex."""
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _largest(array: NDArray[Any]) -> float:
    """The largest absolute value; 0 of an empty array."""
    return float(np.max(np.abs(array), initial=0.0))


def _share(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf
