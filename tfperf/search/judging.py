"""Who has won, and who cannot be told apart from the winner."""

import math
from collections.abc import Iterable, Mapping, Sequence

from tfperf.measure import Comparison
from tfperf.search.objectives import BANDS, cost, costs_in, told_faster, undisturbed, within_limits
from tfperf.search.question import Question
from tfperf.trials.trial import Trial, median_seconds

__all__ = ["winner_of"]


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


def _not_told_apart(rounds: Sequence[Comparison], best: str, names: Iterable[str]) -> list[str]:
    """Those of which not every round says that they are slower than the best."""
    return [
        name
        for name in names
        if name != best and not all(told_faster(one, best, name) for one in _of_both(rounds, best, name))
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
