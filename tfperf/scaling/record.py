"""What `tfperf scale` found, as a file."""

from typing import Literal

from tfperf.measure import Environment
from tfperf.measure.value import Text, Value
from tfperf.scaling.constants import Range
from tfperf.scaling.forecast import Outlook

__all__ = ["Row", "ScaleRecord", "record"]


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
