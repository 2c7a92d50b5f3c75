"""Does a plan learn what the model learns in float32? The course of its loss, beside that of several seeds."""

import math
from collections.abc import Sequence
from statistics import median

from pydantic import Field

from tfperf.measure.value import Name, Value

__all__ = ["Course", "why_not_followed"]

SLACK = 0.02
"""Share of a loss by which courses differ from rounding alone, where seeds happen to agree better."""

MOST_MOVED = 2.0
"""Times as far as in any seed of the reference, or less than one in so many, that the weights may move altogether."""

STILL = 0.05
"""Share of the reference's way under which a weight counts as one that does not move."""


class Course(Value):
    """What became of a model in the first steps of its training. Immutable.

    Attributes:
        losses: the mean loss of each segment of as many steps; None: it is not finite.
        moved: weight -> the Euclidean distance between its values before and after; None: not finite. Of trainable
            weights with two dimensions or more: a bias before a batch normalization moves by rounding alone.
        statistics: the same of weights that are not trained, as the moving averages of batch normalizations.
    """

    losses: tuple[float | None, ...] = Field(min_length=2)
    moved: dict[Name, float | None]
    statistics: dict[Name, float | None] = Field(default_factory=dict)


def why_not_followed(course: Course, references: Sequence[Course]) -> str | None:
    """Why a plan's course is none that the float32 reference could have taken; None: it is one.

    The loss of each segment must lie in the band of the reference's seeds, which is widened on both sides by its own
    width, by that of the median segment where the seeds agree by chance, and by 2 % of the loss at least. All kernels
    together must move about as far as the reference's, and each kernel and moving average must move at all.

    Args:
        course: of the plan, with the weights and examples of the first seed.
        references: of float32, one for each of two seeds or more.
    """
    seen = zip(*(one.losses for one in references), strict=True)
    bands = [(min(finite), max(finite)) for finite in ([one for one in losses if one is not None] for losses in seen)]
    usual = median(high - low for low, high in bands)
    for number, (loss, (low, high)) in enumerate(zip(course.losses, bands, strict=True), start=1):
        if loss is None:
            return f"its loss is not finite in segment {number} of {len(course.losses)}"
        slack = max(high - low, usual, SLACK * abs(high))
        if not low - slack <= loss <= high + slack:
            band = f"{low - slack:.4g} to {high + slack:.4g}"
            return f"its loss is {loss:.4g} in segment {number} of {len(course.losses)}, float32 has {band}"
    ways = course.moved | course.statistics
    if None in ways.values():
        return "its weights are not finite"
    for name in references[0].moved | references[0].statistics:
        way, least = ways.get(name) or 0.0, min(_way(one, name) for one in references)
        if way < STILL * least:
            return f"its weight {name} does not move as in float32: by {way:.3g}, where that moves by {least:.3g}"
    whole, wholes = _length(course), [_length(one) for one in references]
    if not min(wholes) / MOST_MOVED <= whole <= MOST_MOVED * max(wholes):
        return f"its weights move by {whole:.3g} altogether, in float32 by {min(wholes):.3g} to {max(wholes):.3g}"
    return None


def _way(course: Course, name: str) -> float:
    return (course.moved | course.statistics).get(name) or 0.0


def _length(course: Course) -> float:
    return math.hypot(*(one or 0.0 for one in course.moved.values()))
