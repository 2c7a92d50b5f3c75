"""What the figures of an explanation mean, in sentences."""

from collections.abc import Iterator, Sequence

from tfperf.explaining.explanation import BIG, NEAR, CallTime, Explained, Explanation, Layer, Roof, Technique, Xla
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure.words import format_bytes, format_ratio, format_seconds, plain_ratio

__all__ = [
    "call_words",
    "layer_words",
    "prediction_words",
    "rate_words",
    "technique_words",
    "traces_words",
    "verdicts",
    "xla_words",
]

REASONS = {
    Bound.COMPUTE: "it waits for arithmetic",
    Bound.BANDWIDTH: "it waits for memory",
    Bound.OVERHEAD: "it waits for calls and the start of kernels, not for their work",
}

MOST_LAYERS = 3
"""Layers that the verdict speaks of: the longest. The table has all."""


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


def layer_words(layer: Layer, whole: float, roofs: Sequence[Roof]) -> str:
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


def rate_words(layer: Layer) -> str:
    """What a layer reaches: "210 GFLOP/s and 12 GB/s"."""
    if not layer.seconds:
        return "-"
    return f"{layer.flops / layer.seconds / 1e9:.3g} GFLOP/s and {layer.bytes / layer.seconds / 1e9:.3g} GB/s"


def prediction_words(explained: Explained) -> str:
    """How good the predictions of the layers' times are."""
    big = explained.big_layers
    near = f"{explained.near} of {len(big)} layers above {BIG:.0%} of the kernels' time are predicted within {NEAR:.0%}"
    if not big:
        near = f"no layer takes more than {BIG:.0%} of the kernels' time"
    return (
        f"{near[0].upper()}{near[1:]}. Predicted: each kernel alone, its weights as far away as in the net. At best: "
        "what this machine's peak and bandwidth allow."
    )


def technique_words(technique: Technique) -> str:
    """A technique with its gain: predicted, and measured where it was tried."""
    unit = "an example" if technique.way.startswith("batch ") else "a call"
    tried = "" if technique.measured is None else f", {format_ratio(technique.measured.interval)} measured"
    return (
        f"{technique.recipe}: {plain_ratio(technique.gain)}x predicted{tried}, from {format_seconds(technique.before)} "
        f"{unit} ({technique.against}) to {format_seconds(technique.predicted)} ({technique.way}). {technique.words}"
    )


def xla_words(xla: Xla) -> str:
    """Whether XLA compiles it, and what it fuses."""
    if not xla.compiled:
        return f"XLA: {xla.reason}"
    if xla.reason:
        return f"XLA compiles it, with {xla.fusions} fusions; its kernels cannot be counted: {xla.reason}"
    return (
        f"XLA compiles {xla.operations} operations into {xla.kernels} kernels, {xla.fusions} of them fusions; it moves "
        f"{format_bytes(xla.bytes_after)} instead of {format_bytes(xla.bytes_before)}"
    )


def traces_words(explanation: Explanation) -> str:
    """How often a function of it was traced."""
    sizes, times = len(explanation.batches), explanation.traces
    need = "once for each shape, as it should be" if times == sizes else "more often than needed"
    return f"tf.function traced it {times} time{'s' * (times != 1)} for {sizes} batch size{'s' * (sizes != 1)}, {need}"
