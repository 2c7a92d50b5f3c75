"""What the figures of an explanation mean, in sentences; and whether the time moves as they say."""

import math
from collections.abc import Callable, Iterator, Sequence

from tfperf.explaining.explanation import CallTime, Explained, Intervention, LayerTime, Roof
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure import Progress, Ratio, compare
from tfperf.measure.words import format_seconds

__all__ = ["call_words", "intervene", "judged", "verdicts"]

REASONS = {
    Bound.COMPUTE: "it waits for arithmetic",
    Bound.BANDWIDTH: "it waits for memory",
    Bound.OVERHEAD: "it waits for calls and the start of kernels, not for their work",
}

MOST_LAYERS = 3
"""Layers that the verdict speaks of: the longest. The table has all."""

HALFWAY = 0.5
"""The time must go at least this far, on a logarithmic scale, towards what is expected."""

UNMOVED = 1.25
"""A time that is expected to stay, or nearly so, may become so many times longer or shorter than that, at most."""


def verdicts(explained: Explained, roofs: Sequence[Roof]) -> Iterator[str]:
    """What the model at a batch size is bound by: its calls, then its big layers, a sentence each."""
    yield from (call_words(call) for call in explained.calls)
    whole = sum(layer.seconds for layer in explained.layers)
    yield from (layer_words(layer, whole, roofs) for layer in explained.big_layers[:MOST_LAYERS])


def call_words(call: CallTime) -> str:
    """What a call is bound by, with the shares that say so."""
    parts = ", ".join(f"{bound} {call.spent.share(bound):.0%}" for bound in Bound)
    expected = "" if call.predicted is None else f" ({format_seconds(call.predicted)} predicted)"
    kernels = f"{call.kernels} kernel{'s' * (call.kernels != 1)}"
    between = f"{format_seconds(call.between)} pass outside its {kernels}" if call.kernels else "it has no kernels"
    return (
        f"{call.way}: {format_seconds(call.seconds)} a call{expected}, {call.bound.adjective}: {REASONS[call.bound]}. "
        f"{parts[0].upper()}{parts[1:]}; {between}."
    )


def layer_words(layer: LayerTime, whole: float, roofs: Sequence[Roof]) -> str:
    """What a layer is bound by, with what it reaches of what the machine gives.

    Args:
        whole: seconds of all layers.
    """
    peak = max((roof.flops_per_second or 0.0 for roof in roofs if roof.name == "float32"), default=0.0)
    reached = f", {layer.flops / layer.seconds / peak:.0%} of the float32 peak" if peak and layer.seconds else ""
    return (
        f"{layer.name}: {layer.seconds / whole:.0%} of the kernels' time, {layer.bound.adjective}: "
        f"{layer.intensity:.3g} FLOPs for each byte, {rate_words(layer)}{reached}"
    )


def rate_words(layer: LayerTime) -> str:
    """What a layer reaches: "210 GFLOP/s and 12 GB/s"."""
    if not layer.seconds:
        return "-"
    return f"{layer.flops / layer.seconds / 1e9:.3g} GFLOP/s and {layer.bytes / layer.seconds / 1e9:.3g} GB/s"


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
