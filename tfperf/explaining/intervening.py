"""A class is put to the test: something is changed, and the time must move as the class says."""

import math
from collections.abc import Callable

from tfperf.explaining.explanation import Intervention
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure import Progress, Ratio, compare

__all__ = ["intervene", "judged"]

HALFWAY = 0.5
"""The time must go at least this far, on a logarithmic scale, towards what is expected."""

UNMOVED = 1.25
"""A time that is expected to stay, or nearly so, may become so many times longer or shorter than that, at most."""


def intervene(
    what: str,
    bound: Bound,
    original: Callable[[], object],
    changed: Callable[[], object],
    expected: float,
    *,
    time_limit: float = 5.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Intervention:
    """Time the original and the changed work side by side.

    Args:
        what: was changed, in words: "half the inner size".
        bound: the class that says how the time must move.
        expected: the time after by the time before, by that class: 0.5 of half the work.
        time_limit: seconds for both.

    Raises:
        ValueError: nothing above 0 is expected.
    """
    candidates = {"original": original, "changed": changed}
    comparison = compare(candidates, time_limit=time_limit, on_progress=on_progress)
    return judged(what, bound, comparison.ratio("original", "changed"), expected)


def judged(what: str, bound: Bound, ratio: Ratio, expected: float) -> Intervention:
    """What a ratio that was measured side by side says of a class.

    Args:
        ratio: how many times faster the changed work is.
    """
    if not 0 < expected < math.inf:
        raise ValueError(f"expected a ratio of times above 0. Received: expected={expected}")
    moved = 1 / ratio.estimate
    if 1 / UNMOVED < expected < UNMOVED:
        agrees = 1 / UNMOVED < moved / expected < UNMOVED
    else:
        agrees = math.log(moved) / math.log(expected) >= HALFWAY
    return Intervention(
        what=what,
        bound=bound,
        expected=expected,
        ratio=ratio,
        agrees=agrees,
        words=f"{what}: {moved:.2f} times the time [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]; {bound.adjective} work "
        f"should take {expected:.2f} times. The verdict {'holds' if agrees else 'FAILS'}.",
    )
