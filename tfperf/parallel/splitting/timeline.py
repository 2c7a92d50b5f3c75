"""When the stages of a pipeline worked, how long they stood idle, and how long they must."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    def task_seconds(self, phase: str = "forward") -> NDArray[np.float64]:
        """How long each task took, shape (stages, micro-batches)."""
        tasks = {(task.stage, task.micro_batch): task.end - task.start for task in self.tasks if task.phase == phase}
        last = max((micro_batch for _, micro_batch in tasks), default=-1)
        return np.array([[tasks[stage, index] for index in range(last + 1)] for stage in range(self.stages)])


def pipeline_seconds(micro_batches: int, forward: ArrayLike, backward: ArrayLike | None = None) -> float:
    """Predict how long a pipeline takes for its micro-batches.

    A task begins when its stage is free and the stage beside it has passed the micro-batch on. The backward phase
    begins when the forward phase has ended, and takes stages and micro-batches in the opposite order, as in GPipe
    (Huang et al. 2019).

    Args:
        micro_batches: their number.
        forward: seconds of a stage for a micro-batch: the same for all of them, (stages,), or for each,
            (stages, micro-batches), as a stage may be faster while the others wait.
        backward: the same, in training.
    """
    tasks = _tasks(micro_batches, forward)
    return _makespan(tasks) + (_makespan(_tasks(micro_batches, backward)[::-1, ::-1]) if backward is not None else 0.0)


def pipeline_bubble(micro_batches: int, forward: ArrayLike, backward: ArrayLike | None = None) -> float:
    """Predict the bubble of a pipeline: the share of their time in which its stages have nothing to do, 0 to 1.

    It is (s - 1) / (m + s - 1) for s equal stages and m micro-batches, and larger if the stages are not equal.

    Args:
        micro_batches: their number.
        forward, backward: seconds, as `pipeline_seconds` takes them.
    """
    phases = [_tasks(micro_batches, seconds) for seconds in (forward, backward) if seconds is not None]
    busy = sum(float(tasks.sum()) for tasks in phases)
    return 1 - busy / (len(phases[0]) * pipeline_seconds(micro_batches, forward, backward))


def _tasks(micro_batches: int, seconds: ArrayLike) -> NDArray[np.float64]:
    """Seconds of each task, shape (stages, micro-batches)."""
    array = np.asarray(seconds, np.float64)
    return np.broadcast_to(array if array.ndim == 2 else array[:, np.newaxis], (len(array), micro_batches))


def _makespan(tasks: NDArray[np.float64]) -> float:
    """From the beginning of the first task to the end of the last; stages and micro-batches in the order they go by."""
    ends = np.zeros(tasks.shape[1] + 1)  # of the stage before, by micro-batch; the first stands for none
    for stage in tasks:
        free = 0.0
        for index, seconds in enumerate(stage, start=1):
            free = ends[index] = max(free, ends[index]) + seconds
    return float(ends[-1])
