"""Whether two runs of one net give the same answers. No speed without this check."""

import math
from collections.abc import Mapping, Sequence
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
    relative_error: float | None = Field(ge=0, description="largest absolute error by the largest reference output")
    same_top1_share: float | None = Field(
        ge=0, le=1, description="share of rows with the same largest output; None: not rows"
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
    the error of a small logit beside large ones is measured by the large ones, as it decides nothing.

    Args:
        candidate: name of what gave `outputs`.
        outputs, reference: an array or tensor, or a list, tuple or dictionary of them, of equal structure and shapes.
        tolerance: largest relative error that passes, without unit.

    Raises:
        MeasurementError: the reference itself is not finite: nothing can be said.
    """
    ours, theirs = _arrays(outputs), _arrays(reference)
    if not theirs or any(not np.isfinite(array).all() for array in theirs):
        raise MeasurementError(f"the reference for '{candidate}' has outputs that are not finite; check its input")
    absolute = relative = None
    top1: float | None = None
    same_form = [a.shape for a in ours] == [a.shape for a in theirs]
    if same_form and all(np.isfinite(array).all() for array in ours):
        errors = [float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(ours, theirs, strict=True)]
        scales = [float(np.max(np.abs(b), initial=0.0)) for b in theirs]
        absolute = max(errors)
        relative = max(_share(error, scale) for error, scale in zip(errors, scales, strict=True))
        if not math.isfinite(relative):
            relative = None
        if len(ours) == 1 and ours[0].ndim == 2 and ours[0].shape[1] > 1:
            top1 = float(np.mean(ours[0].argmax(axis=1) == theirs[0].argmax(axis=1)))
    return Agreement(
        candidate=candidate,
        largest_absolute_error=absolute,
        relative_error=relative,
        same_top1_share=top1,
        tolerance=tolerance,
    )


def _arrays(outputs: Any) -> list[NDArray[np.float64]]:
    """The leaves of a nest of arrays, in a fixed order, as float64."""
    if isinstance(outputs, Mapping):
        return [array for key in sorted(outputs) for array in _arrays(outputs[key])]
    if isinstance(outputs, Sequence) and not isinstance(outputs, str | bytes):
        return [array for item in outputs for array in _arrays(item)]
    return [np.asarray(outputs, dtype=np.float64)]


def _share(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf
