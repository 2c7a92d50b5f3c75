"""Training as events: workers that are late by chance, jobs that share a line, and failures that cost work."""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tfperf.scaling.step import Cluster, Exchange, behaviour, collective_seconds
from tfperf.scaling.workload import Workload

__all__ = ["Simulation", "simulate", "simulate_failures", "young_interval"]


@dataclass(frozen=True)
class Simulation:
    """What happened.

    Attributes:
        seconds: of each step of each job, shape (jobs, steps).
        collectives: how many ran.
    """

    seconds: NDArray[np.float64]
    collectives: int

    @property
    def mean(self) -> float:
        """Mean seconds of a step."""
        return float(self.seconds.mean())


class _Kind(IntEnum):
    """Events of one moment are handled in this order: what is ready now joins the collective that begins now."""

    COMPUTED = 0
    EXCHANGED = 1
    LOOK = 2


@dataclass
class _Job:
    """A training job: where it is in its step."""

    late: NDArray[np.float64]  # (steps,): how much slower the slowest worker is than usual
    step: int = 0
    began: float = 0.0
    done: float = 0.0  # seconds of computing that are behind it
    at: float = 0.0  # the moment that `done` is of
    next: int = 0  # the first gradient that is not computed
    taken: int = 0  # the first gradient that is not exchanged or being exchanged
    exchanging: bool = False
    asked: bool = False
    looked: float = -np.inf
    version: int = 0  # of its next COMPUTED event; older ones are void


def simulate(
    workload: Workload,
    cluster: Cluster,
    exchange: Exchange | None = None,
    *,
    steps: int = 20,
    jobs: int = 1,
    seed: int = 0,
) -> Simulation:
    """Simulate synchronous steps, each with other late workers, of one job or of several like ones on the same line.

    A worker's step times scatter normally, with the standard deviation of the cluster's likely skew; a gradient can
    be exchanged once the slowest worker has it. A line serves one collective after the other, whichever job asks first.

    Args:
        workload, cluster, exchange: as `predict_step` takes them; parameter servers that have whole tensors are not
            simulated.
        steps: of each job.
        jobs: that share the line.
        seed: of all that is random.
    """
    exchange = exchange or Exchange()
    if exchange.whole_tensors:
        raise ValueError("expected an exchange in collectives. Received: whole_tensors=True, which has a formula alone")
    return _Simulator(workload, cluster, exchange, steps, jobs, np.random.default_rng(seed)).run()


class _Simulator:
    """The events, and the line that the jobs share."""

    def __init__(
        self, workload: Workload, cluster: Cluster, exchange: Exchange, steps: int, jobs: int, draw: np.random.Generator
    ) -> None:
        alone = cluster.workers == 1
        self._gradients = [] if alone else list(workload.gradients)
        self._compute = workload.seconds
        self._exchange = exchange
        self._seconds_of: Callable[[float], float] = collective_seconds(workload, cluster, exchange)
        contention, self._eager = behaviour(cluster, exchange)
        self._slower = 1 + contention
        skew, sharing = cluster.skew.likely, cluster.sharing()
        self._jobs = [
            _Job(np.array([sharing * (1 + skew * _largest(draw, cluster.workers)) for _ in range(steps)]))
            for _ in range(jobs)
        ]
        for job in self._jobs[1:]:  # jobs do not begin together
            job.began = job.at = float(draw.uniform(0, workload.seconds))
        self._seconds = np.zeros((jobs, steps))
        self._events: list[tuple[float, int, int, int, int]] = []  # moment, kind, number, job, version
        self._number = itertools.count()
        self._waiting: deque[tuple[int, float]] = deque()  # jobs that ask for the line, and the bytes
        self._busy = False
        self._collectives = 0

    def run(self) -> Simulation:
        """Handle events until all steps of all jobs are done."""
        for index, job in enumerate(self._jobs):
            self._plan_computing(index, job.at)
        while self._events:
            now, kind, _, index, version = heapq.heappop(self._events)
            job = self._jobs[index]
            if kind == _Kind.COMPUTED:
                if version == job.version:
                    self._computed(index, now)
            elif kind == _Kind.EXCHANGED:
                self._exchanged(index, now)
            else:
                self._look(index, now)
        return Simulation(self._seconds, self._collectives)

    def _push(self, moment: float, kind: _Kind, index: int, version: int = 0) -> None:
        heapq.heappush(self._events, (moment, kind, next(self._number), index, version))

    def _ready_at(self, job: _Job, gradient: int) -> float:
        """Seconds of computing after which a gradient is there; the last one's successor is the end of computing."""
        late = float(job.late[job.step])
        if gradient < len(self._gradients) and self._exchange.overlap:
            return self._gradients[gradient][1] * late
        return self._compute * late

    def _advance(self, job: _Job, now: float) -> None:
        """Bring a job's computing up to now, at the pace that it had."""
        job.done += (now - job.at) / (self._slower if job.exchanging else 1.0)
        job.at = now

    def _plan_computing(self, index: int, now: float) -> None:
        """Say when the next gradient, or the end, will be computed at the present pace."""
        job = self._jobs[index]
        missing = max(0.0, self._ready_at(job, job.next) - job.done) * (self._slower if job.exchanging else 1.0)
        job.version += 1
        self._push(now + missing, _Kind.COMPUTED, index, job.version)

    def _computed(self, index: int, now: float) -> None:
        job = self._jobs[index]
        self._advance(job, now)
        target = self._ready_at(job, job.next)
        job.done = max(job.done, target)
        count = len(self._gradients)
        if job.next == count:  # the end of computing
            job.next += 1
            self._finish(index, now)
            return
        while job.next < count and self._ready_at(job, job.next) <= target:
            job.next += 1
        self._plan_computing(index, now)
        self._plan_look(index, now)

    def _plan_look(self, index: int, now: float) -> None:
        """Look for gradients, a cycle after the last look at the earliest, unless one is under way."""
        job = self._jobs[index]
        if job.asked or job.exchanging or job.taken >= min(job.next, len(self._gradients)):
            return
        job.asked = True
        self._push(max(now, job.looked + self._exchange.cycle) if self._eager else now, _Kind.LOOK, index)

    def _look(self, index: int, now: float) -> None:
        job = self._jobs[index]
        job.asked, job.looked = False, now
        last = min(job.next, len(self._gradients)) if self._eager else len(self._gradients)
        size, end = 0.0, job.taken
        while end < last and (end == job.taken or size + self._gradients[end][0] <= self._exchange.fusion):
            size += self._gradients[end][0]
            end += 1
        if end > job.next:  # its last gradient is not there yet
            return
        job.taken, job.asked = end, True
        self._waiting.append((index, size))
        self._serve(now)

    def _serve(self, now: float) -> None:
        """Give the line to the job that has waited longest."""
        if self._busy or not self._waiting:
            return
        index, size = self._waiting.popleft()
        job = self._jobs[index]
        self._advance(job, now)
        job.asked, job.exchanging, self._busy = False, True, True
        self._collectives += 1
        if job.next <= len(self._gradients):
            self._plan_computing(index, now)
        self._push(now + self._seconds_of(size), _Kind.EXCHANGED, index)

    def _exchanged(self, index: int, now: float) -> None:
        job = self._jobs[index]
        self._advance(job, now)
        job.exchanging, self._busy = False, False
        if job.next <= len(self._gradients):
            self._plan_computing(index, now)
        self._plan_look(index, now)
        self._finish(index, now)
        self._serve(now)

    def _finish(self, index: int, now: float) -> None:
        """End a step whose gradients are all computed and exchanged, and begin the next."""
        job = self._jobs[index]
        if job.exchanging or job.asked or job.taken < len(self._gradients) or job.next <= len(self._gradients):
            return
        self._seconds[index, job.step] = now - job.began
        job.step += 1
        if job.step == len(job.late):
            return
        job.began, job.done, job.at, job.next, job.taken, job.looked = now, 0.0, now, 0, 0, -np.inf
        self._plan_computing(index, now)


def _largest(draw: np.random.Generator, workers: int) -> float:
    """How late the slowest of the workers is, in standard deviations; one alone is as usual."""
    return float(draw.standard_normal(workers).max()) if workers > 1 else 0.0


def young_interval(checkpoint: float, mean_time_between_failures: float) -> float:
    """Return the seconds of work between two checkpoints that lose least.

    Args:
        checkpoint: seconds that writing one takes.
        mean_time_between_failures: seconds, of all workers together: that of one, divided by their number.

    Source: Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    return math.sqrt(2 * checkpoint * mean_time_between_failures)


def simulate_failures(
    work: float,
    interval: float,
    *,
    checkpoint: float,
    restart: float,
    mean_time_between_failures: float,
    runs: int = 100,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Simulate work that is stopped by failures and begun again from its last checkpoint.

    Failures come at random moments, also while a checkpoint is written or the work restarts.

    Args:
        work: seconds that it takes without any failure or checkpoint.
        interval: seconds of work between two checkpoints.
        checkpoint: seconds that writing one takes.
        restart: seconds from a failure until work goes on.
        mean_time_between_failures: seconds, of all workers together.
        runs: how often the whole is simulated.
        seed: of the random moments.

    Returns:
        Seconds of each run, shape (runs,).
    """
    if min(work, interval, mean_time_between_failures) <= 0:
        raise ValueError(f"expected work, interval and time between failures above 0 s. Received: {work}, {interval}")
    draw = np.random.default_rng(seed)
    seconds = np.empty(runs)
    for run in range(runs):
        now, done = 0.0, 0.0
        failure = draw.exponential(mean_time_between_failures)
        while done < work:
            part = min(interval, work - done)
            ends = now + part + (checkpoint if done + part < work else 0.0)
            if ends <= failure:
                now, done = ends, done + part
                continue
            now = failure
            failure = now + draw.exponential(mean_time_between_failures)
            while failure < now + restart:  # it fails again before it has begun
                now, failure = failure, failure + draw.exponential(mean_time_between_failures)
            now += restart
        seconds[run] = now
    return seconds
