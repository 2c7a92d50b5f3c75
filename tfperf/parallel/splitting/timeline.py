"""When the stages of a pipeline worked, how long they stood idle, and how long they must."""

import dataclasses
from collections.abc import Sequence
from statistics import median

__all__ = ["StageTask", "Timeline", "pipeline_bubble", "pipeline_seconds"]


@dataclasses.dataclass(frozen=True)
class StageTask:
    """One micro-batch in one stage: `phase` is "forward" or "backward"; times in seconds on one clock."""

    stage: int
    micro_batch: int
    phase: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What the stages of a pipeline did in one call."""

    stages: int
    tasks: tuple[StageTask, ...]

    @property
    def seconds(self) -> float:
        """From the beginning of the first task to the end of the last."""
        return max(task.end for task in self.tasks) - min(task.start for task in self.tasks)

    @property
    def bubble(self) -> float:
        """The measured bubble: the share of their time in which the stages had nothing to do, 0 to 1."""
        busy = sum(task.end - task.start for task in self.tasks)
        return 1 - busy / (self.stages * self.seconds)

    def stage_seconds(self, phase: str = "forward") -> list[float]:
        """How long each stage took for one micro-batch: the median of its tasks."""
        lengths: list[list[float]] = [[] for _ in range(self.stages)]
        for task in self.tasks:
            if task.phase == phase:
                lengths[task.stage].append(task.end - task.start)
        return [median(stage) for stage in lengths]


def pipeline_seconds(micro_batches: int, *phases: Sequence[float]) -> float:
    """Predict how long a pipeline takes for its micro-batches.

    The first passes all stages; each other follows at the pace of the slowest stage. The backward phase begins when the
    forward phase has ended, as in GPipe (Huang et al. 2019).

    Args:
        micro_batches: their number.
        *phases: seconds of each stage for one micro-batch: forward, and in training also backward.
    """
    return sum(sum(seconds) + (micro_batches - 1) * max(seconds) for seconds in phases)


def pipeline_bubble(micro_batches: int, *phases: Sequence[float]) -> float:
    """Predict the bubble of a pipeline: the share of their time in which its stages have nothing to do, 0 to 1.

    It is (s - 1) / (m + s - 1) for s equal stages and m micro-batches, and larger if the stages are not equal.

    Args:
        micro_batches: their number.
        *phases: seconds of each stage for one micro-batch: forward, and in training also backward.
    """
    busy = micro_batches * sum(map(sum, phases))
    return 1 - busy / (len(phases[0]) * pipeline_seconds(micro_batches, *phases))
