"""How the plans that were tried rank: what is better, which may be the best, and who has won."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from tfperf.engines.plan import Plan
from tfperf.measure import Comparison, Measurement, Ratio, Verdict
from tfperf.measure.comparison import paired
from tfperf.search.question import Objective, Question
from tfperf.search.strategy import (
    EQUAL_MEMORY,
    EQUAL_SIZE,
    FEWER,
    FINALISTS,
    MOST_CONTENDERS,
    NEAR,
    RIVAL,
    UNDISTURBED,
)
from tfperf.trials.trial import Status, Trial, median_seconds

__all__ = ["Ranking", "cost", "costs_in", "pareto_front", "per_example", "undisturbed", "winner_of", "within_limits"]

BANDS: Mapping[Objective, float] = {
    "latency": 0.0,  # times bring their own intervals
    "throughput": 0.0,
    "size": EQUAL_SIZE.value,
    "memory": EQUAL_MEMORY.value,
}
"""Share by which two plans may differ and still count as equal in an objective, before times decide."""


def cost(trial: Trial, objective: Objective, seconds: float | None = None) -> float:
    """What is to be small; infinite for a plan that did not run, or that loads nothing from disk where size counts.

    Args:
        seconds: of a call, where they are better known than from the trial's own measurement.
    """
    if trial.status is not Status.RAN or trial.measurement is None:
        return float("inf")
    if objective == "size":
        return float("inf") if trial.size is None else float(trial.size)
    if objective == "memory":
        return float(max(1, trial.memory or 0))  # costs are compared as ratios
    median = trial.measurement.median if seconds is None else seconds
    return median / trial.batch if objective == "throughput" else median


def costs_in(comparison: Comparison | None) -> dict[str, float]:
    """Seconds of a call, by name, as a comparison found them."""
    return {one.name: one.median for one in comparison.measurements} if comparison else {}


def undisturbed(measurement: Measurement) -> float:
    """Seconds of a call that nothing came between: a low percentile of the samples."""
    return float(np.percentile(measurement.samples, UNDISTURBED.value))


def within_limits(trial: Trial, question: Question, seconds: float | None = None) -> bool:
    """Whether a plan ran, and keeps to the latency that was asked for."""
    latency = cost(trial, "latency", seconds)
    return latency < float("inf") and latency <= (question.latency_limit or float("inf"))


def pareto_front(costs: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Those that no other surpasses: as good in every objective, and better in one.

    Args:
        costs: name -> what is to be small, one value for each objective, in one order.
    """
    rows = {name: np.array(values) for name, values in costs.items()}
    return tuple(
        name
        for name, mine in rows.items()
        if np.isfinite(mine).all()
        and not any((other <= mine).all() and (other < mine).any() for other in rows.values())
    )


def per_example(comparison: Comparison, batches: Mapping[str, int]) -> Comparison:
    """The comparison with ratios and verdicts of seconds an example, in place of seconds a call.

    Args:
        batches: name -> batch size. Where all are alike, nothing changes.
    """
    if len(set(batches.values())) == 1:
        return comparison
    return comparison.model_copy(
        update={"ratios": tuple(_per_example(comparison, ratio, batches) for ratio in comparison.ratios)}
    )


def winner_of(
    trials: Mapping[str, Trial],
    question: Question,
    final: Comparison | None,
    confirmation: Comparison | None,
) -> tuple[str | None, tuple[str, ...]]:
    """The best in the first objective, within the limits, and those that cannot be told apart from it.

    Where the finalists were measured in two rounds, each in its own processes, both count alike: a process may
    be lucky with its place in memory. Of those that cannot be told apart from the one that is ahead, the winner is the
    best by its ratio times that of its undisturbed calls. A busy machine makes the former wrong by more; the latter
    alone would not see that threads of its own are slow at times. The same plan with its batch size fixed wins before
    it: who compiles it knows more.

    Args:
        trials: by name, as first looked at.
        final: None: there was none yet, and the looks decide.
        confirmation: of some of the finalists.
    """
    objective = question.objectives[0]
    rounds = [one for one in (final, confirmation) if one is not None]
    seconds = costs_in(final) | costs_in(confirmation)
    names = sorted(name for name in trials if not rounds or name in costs_in(rounds[0]))
    costs = {
        name: cost(trials[name], objective, seconds.get(name))
        for name in names
        if within_limits(trials[name], question, seconds.get(name))
    }
    costs = {name: value for name, value in costs.items() if value < math.inf}
    if not costs:
        return None, ()
    if objective in ("size", "memory"):  # of those that are nearly as small, the fastest
        most = min(costs.values()) * (1 + BANDS[objective])
        costs = {
            name: cost(trials[name], "throughput", seconds.get(name)) for name, value in costs.items() if value <= most
        }
    if not rounds:
        return min(costs, key=lambda name: (costs[name], median_seconds(trials[name]), name)), ()
    confirmed = [name for name in costs if all(name in costs_in(one) for one in rounds)] or list(costs)
    anchor = min(confirmed, key=lambda name: costs[name])
    ahead = max(confirmed, key=lambda name: _mean_log_ratio(rounds, anchor, name))
    near = [ahead, *_not_told_apart(rounds, ahead, confirmed)]
    batches = {name: trials[name].batch for name in near}

    def gain(name: str) -> float:
        return _mean_log_ratio(rounds, ahead, name) - _mean_log_undisturbed(rounds, ahead, name, batches)

    best = max(near, key=gain)
    best = next((name for name in near if _fixes_batch_of(trials[best], trials[name])), best)
    return best, tuple(_not_told_apart(rounds, best, costs))


class Ranking:
    """The trials of a search so far, by name, and how they rank.

    Attributes:
        trials: in the order in which they finished.
        final: of the best, in turns; None: not yet.
        confirmation: of the best of those, once more in other processes; None: not yet.
    """

    def __init__(self, question: Question, defaults: Collection[Plan]) -> None:
        """Know of nothing yet.

        Args:
            defaults: what users have.
        """
        self._question, self._defaults = question, defaults
        self.trials: dict[str, Trial] = {}
        self.final: Comparison | None = None
        self.confirmation: Comparison | None = None
        self._in_turns: dict[str, float] = {}  # seconds of those that were measured before the final
        self._of_plan: dict[Plan, dict[str, None]] = {}  # names, in order
        self._costs: dict[str, float] = {}  # asked for so often that the search would wait for percentiles

    def note(self, trial: Trial) -> None:
        """A trial is finished, or came out otherwise than before."""
        self.trials[trial.name] = trial
        self._of_plan.setdefault(trial.plan, {})[trial.name] = None
        self._costs.pop(trial.name, None)

    def note_round(self, found: Comparison) -> None:
        """What was measured in turns before the final is better known than from its look."""
        self._in_turns = {one.name: undisturbed(one) for one in found.measurements}
        self._costs.clear()

    def winner(self) -> tuple[str | None, tuple[str, ...]]:
        """The best, and those that cannot be told apart from it; before the final, the best look."""
        return winner_of(self.trials, self._question, self.final, self.confirmation)

    def front(self) -> tuple[str, ...]:
        """Those that no other surpasses in all objectives; empty where there is one."""
        if len(self._question.objectives) < 2:
            return ()
        seconds = costs_in(self.final)
        return pareto_front(
            {
                name: [cost(trial, one, seconds.get(name)) for one in self._question.objectives]
                for name, trial in self.trials.items()
                if within_limits(trial, self._question, seconds.get(name))
            }
        )

    def contenders(self) -> list[str]:
        """Trials that may be the best, the best first."""
        names = self.by_cost(self.trials)
        if len(self._question.objectives) > 1:
            front = self.front()
            return [name for name in names if name in front][: MOST_CONTENDERS.number]
        if not self._question.is_timed:
            return names[: FINALISTS.number]
        return [name for name in names if not self.is_far(name, names[0])][: MOST_CONTENDERS.number]

    def is_far(self, name: str, best: str) -> bool:
        """Whether no luck makes one a rival of the best."""
        return self.cost(name) > NEAR.value * self.cost(best)

    def is_rival(self, name: str, winner: str) -> bool:
        """Whether one was so near to the winner of the final that a lucky process may have decided."""
        of_time_alone = self._question.is_timed and len(self._question.objectives) == 1
        if name == winner or not of_time_alone or not {name, winner} <= set(costs_in(self.final)):
            return True
        return self.final is not None and self.final.ratio(name, winner).estimate <= RIVAL.value

    def by_cost(self, names: Iterable[str]) -> list[str]:
        """Those that ran, within the limits, the best first; of equal ones the faster."""
        costs = {name: self.cost(name) for name in names}
        runs = [name for name, value in costs.items() if value < float("inf")]
        return sorted(runs, key=lambda name: (costs[name], median_seconds(self.trials[name])))

    def cost(self, name: str) -> float:
        """In the first objective; infinite where a limit is not kept."""
        if name not in self._costs:
            self._costs[name] = self._cost(name)
        return self._costs[name]

    def _cost(self, name: str) -> float:
        trial = self.trials[name]
        if not within_limits(trial, self._question) or trial.measurement is None:
            return float("inf")
        seconds = self._in_turns.get(name) or undisturbed(trial.measurement)
        return cost(trial, self._question.objectives[0], seconds)

    def cost_of(self, plan: Plan) -> float:
        """The cost of a plan, at its best batch size; infinite before it was looked at."""
        return min(map(self.cost, self._names_of(plan)), default=float("inf"))

    def batch_of(self, plan: Plan) -> int:
        """The batch size at which a plan was best."""
        return self.trials[min(self._names_of(plan), key=self.cost)].batch

    def best_of_defaults(self, names: Collection[str]) -> list[str]:
        """What users have and is not among the names, each at its best batch size, the best first."""
        defaults: dict[str, str] = {}
        for name in sorted(self.defaults(), key=self.cost):  # also those beyond a limit: users have them
            defaults.setdefault(self.trials[name].plan.engine, name)
        return [name for name in defaults.values() if name not in names]

    def defaults(self) -> list[str]:
        """What users have, as far as it ran."""
        trials = self.trials.items()
        return [name for name, trial in trials if trial.plan in self._defaults and trial.status is Status.RAN]

    def too_late(self, plan: Plan, smaller: Sequence[int]) -> str | None:
        """Why a larger batch cannot be better than what was seen of the smaller ones; None: it may be."""
        seen = [self.trials[Trial(plan=plan, batch=batch, status=Status.NOT_TRIED).name] for batch in smaller]
        ran = [trial for trial in seen if trial.status is Status.RAN]
        if ran and not within_limits(ran[-1], self._question):
            return f"batch {ran[-1].batch} takes longer than the limit already"
        if len(ran) > 2 and all(
            trial.examples_per_second < FEWER.value * ran[-3].examples_per_second for trial in ran[-2:]
        ):
            return f"fewer examples a second from batch {ran[-3].batch} on"
        if seen and not ran:
            return f"it does not run with batch {seen[0].batch}"
        return None

    def _names_of(self, plan: Plan) -> Iterable[str]:
        return self._of_plan.get(plan, ())


def _per_example(comparison: Comparison, ratio: Ratio, batches: Mapping[str, int]) -> Ratio:
    baseline, candidate = (comparison[name].turns / batches[name] for name in (ratio.baseline, ratio.candidate))
    rounds = min(len(baseline), len(candidate))
    return paired(ratio.baseline, ratio.candidate, baseline[:rounds], candidate[:rounds], comparison.margin)


def _not_told_apart(rounds: Sequence[Comparison], best: str, names: Iterable[str]) -> list[str]:
    """Those of which not every round says that they are slower than the best."""
    return [
        name
        for name in names
        if name != best
        and not all(one.ratio(name, best).verdict is Verdict.FASTER for one in _of_both(rounds, best, name))
    ]


def _fixes_batch_of(trial: Trial, other: Trial) -> bool:
    """Whether another trial is of the same plan with its batch size fixed, and nothing else changed."""
    plan, fixed = trial.plan, other.plan
    opened = tuple(one for one in fixed.transformations if one != "fixed_batch")
    same = fixed.model_copy(update={"transformations": opened, "batch": plan.batch}) == plan
    return same and fixed.fixed_batch == trial.batch and plan.fixed_batch is None


def _mean_log_ratio(rounds: Sequence[Comparison], anchor: str, name: str) -> float:
    """How much faster than the anchor, on average over the rounds."""
    if name == anchor:
        return 0.0
    logs = [math.log(one.ratio(anchor, name).estimate) for one in _of_both(rounds, anchor, name)]
    return sum(logs) / len(logs)


def _mean_log_undisturbed(rounds: Sequence[Comparison], anchor: str, name: str, batches: Mapping[str, int]) -> float:
    """How much slower than the anchor for each example, on average over the rounds, where nothing disturbed either."""
    logs = [
        math.log(undisturbed(one[name]) / batches[name] / (undisturbed(one[anchor]) / batches[anchor]))
        for one in _of_both(rounds, anchor, name)
    ]
    return sum(logs) / len(logs)


def _of_both(rounds: Sequence[Comparison], one: str, other: str) -> list[Comparison]:
    """The rounds in which two were measured; the first has all that may win."""
    return [found for found in rounds if {one, other} <= set(costs_in(found))]
