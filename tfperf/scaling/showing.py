"""An outlook in rows, in sentences, and as a file."""

from typing import Literal

from tfperf.measure import Environment
from tfperf.measure.value import Text, Value
from tfperf.report.scaling import ScaleRow
from tfperf.scaling.constants import Range
from tfperf.scaling.critical_batch import CRITICAL_BATCH, seconds_to_accuracy
from tfperf.scaling.forecast import Outlook
from tfperf.scaling.step import predict_step
from tfperf.scaling.workload import BatchTimes

__all__ = ["Row", "ScaleRecord", "assumptions", "record", "rows", "verdicts"]

MOST_REMEDIES = 4

LIMITS = {
    "compute": "computing; the exchange hides behind it",
    "late workers": "the slowest worker, for which the others wait",
    "link": "the bandwidth of the line",
    "latency": "the latency of the line, hop after hop",
    "inside the node": "the bandwidth inside a node",
    "servers": "the links of the parameter servers",
    "software": "what software makes of the line: a flow's limit, a start for each collective, sums and copies",
}
"""Bottleneck -> what it means."""


def rows(view: Outlook) -> list[ScaleRow]:
    """Return the outlook as plain figures."""
    return [
        ScaleRow(one.workers, *one.throughput, one.workload.examples_per_second, one.exposed_share, bottleneck)
        for one, bottleneck in zip(view.predictions, view.bottlenecks, strict=True)
    ]


def verdicts(view: Outlook, times: BatchTimes | None = None) -> list[str]:
    """Return what the figures mean, and what to change.

    Args:
        view: the predictions.
        times: of a step by batch; None: they are taken to grow with the batch.
    """
    most = view.predictions[-1]
    if most.workers == 1:
        return ["One worker exchanges nothing; --workers asks about more."]
    said = ["More workers do not pay: of each that is added, less than half is gained."]
    if view.knee > 1:
        knee = next(one for one in view.predictions if one.workers == view.knee)
        gain = knee.throughput.likely / knee.workload.examples_per_second
        most_asked = ", the most that were asked for" if knee is most else ""
        pays = f"Workers pay up to {view.knee:,}{most_asked}: together they do the work of"
        said = [f"{pays} {gain:,.{1 if gain < 100 else 0}f} alone, and at least half of each of the last is gained."]
    said.append(f"With {most.workers:,} the step is limited by {LIMITS[view.bottlenecks[-1]]}.")
    shown = [f"{one.words} ({one.gain - 1:+.0%})" for one in view.remedies[:MOST_REMEDIES]]
    said.append(
        f"What would help there, by gain in throughput: {'; '.join(shown)}."
        if shown
        else "Nothing that the model knows of would gain more than 1 % there."
    )
    return [*said, _strong_words(view, times), _accuracy_words(view)]


def assumptions(view: Outlook, times: BatchTimes | None, source: str) -> tuple[str, ...]:
    """Return what the figures rest on.

    Args:
        view: the predictions.
        times: measured; None: the speed of one worker was given.
        source: of the links.
    """
    workload, cluster = view.workload, view.predictions[-1].cluster
    if times is None:
        speed = f"the speed of one worker, {workload.examples_per_second:,.10g} examples/s, is as given"
    else:
        batches = ", ".join(f"{batch}: {1000 * seconds:.3g} ms" for batch, seconds in times.measured)
        speed = f"a step of one worker is measured on this machine (batch {batches})"
    sent = f", sent as {4 * view.exchange.compression:.0f} bytes each" if view.exchange.compression < 1 else ""
    algorithm = view.predictions[-1].likely.algorithm.replace("_", " ")
    tensors = f"{workload.size / 1e6:,.1f} MB in {len(workload.gradients):,} tensors{sent}"
    assumed = (
        "Assumed: a third of a step is forward; work is divided among layers by operations; Horovod's buffer of "
        f"{view.exchange.fusion / 2**20:.0f} MiB and cycle of {1000 * view.exchange.cycle:g} ms; step times of workers "
        f"scatter by {cluster.skew.likely:.1%} (0 to {cluster.skew.slow:.0%})."
    )
    return (
        f"Given or measured: {speed}; {source}.",
        f"Gradients: {tensors}; exchange: {algorithm}, {cluster.software.words}.",
        assumed,
    )


def _strong_words(view: Outlook, times: BatchTimes | None) -> str:
    """What the same batch, divided among the workers, gains."""
    workload = view.workload
    strong = view.strong(times or BatchTimes(0.0, workload.seconds / workload.batch))
    workers, best = max(strong, key=lambda row: row[1].likely, default=(1, Range.exactly(1.0)))
    if best.likely <= 1:
        return f"Dividing a batch of {workload.batch} among workers, in place of multiplying it, gains nothing."
    return (
        f"Dividing a batch of {workload.batch} in place of multiplying it: {workers:,} workers are the fastest, at "
        f"{best.likely:.1f} times one ({best.slow:.1f} to {best.fast:.1f})."
    )


def _accuracy_words(view: Outlook) -> str:
    """How much sooner the accuracy of one worker is reached: larger batches need more examples."""
    most = view.predictions[-1]
    one = predict_step(view.workload, most.cluster.with_workers(1), view.exchange)
    gains = []
    for critical in (CRITICAL_BATCH.slow, CRITICAL_BATCH.fast):
        exactly = Range.exactly(critical)
        gains.append(
            seconds_to_accuracy(one, critical_batch=exactly).likely
            / seconds_to_accuracy(most, critical_batch=exactly).likely
        )
    low, high = sorted(gains)
    return (
        f"Time to the same accuracy, with {most.workers:,} workers and a batch of "
        f"{most.workers * view.workload.batch:,} in all: {low:.1f} to {high:.1f} times sooner than with "
        f"one, for critical batches of {CRITICAL_BATCH.slow:,.0f} to {CRITICAL_BATCH.fast:,.0f}; nobody can "
        "tell that from the net alone."
    )


class Row(Value):
    """One number of workers; low, likely and high where three figures stand together."""

    workers: int
    examples_per_second: Range
    efficiency: Range
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    algorithm: Text
    bottleneck: Text


class Change(Value):
    """Something to change, and the throughput after it as a multiple of that before."""

    words: Text
    gain: float


class ScaleRecord(Value):
    """The prediction for each number of workers, with what it rests on. Immutable."""

    format: Literal["tfperf scale"] = "tfperf scale"
    version: Literal[1] = 1
    model: Text
    batch: int
    gradient_bytes: int
    one_worker_seconds: float
    calibrated: bool
    assumed: tuple[Text, ...]
    rows: tuple[Row, ...]
    knee: int
    changes: tuple[Change, ...]
    environment: Environment


def record(view: Outlook, model: str, calibrated: bool, assumed: tuple[str, ...]) -> ScaleRecord:
    """Put an outlook into a file's form."""
    rows = tuple(
        Row(
            workers=one.workers,
            examples_per_second=one.throughput,
            efficiency=one.efficiency,
            step_seconds=one.likely.seconds,
            compute_seconds=one.likely.compute,
            communication_seconds=one.likely.communication,
            exposed_seconds=one.likely.exposed,
            algorithm=one.likely.algorithm,
            bottleneck=bottleneck,
        )
        for one, bottleneck in zip(view.predictions, view.bottlenecks, strict=True)
    )
    return ScaleRecord(
        model=model,
        batch=view.workload.batch,
        gradient_bytes=view.workload.size,
        one_worker_seconds=view.workload.seconds,
        calibrated=calibrated,
        assumed=assumed,
        rows=rows,
        knee=view.knee,
        changes=tuple(Change(words=one.words, gain=one.gain) for one in view.remedies),
        environment=Environment.here(),
    )
