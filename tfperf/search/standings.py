"""How the plans that were tried stand: what each costs, which may be the best, and which users have."""

from collections.abc import Collection, Iterable, Sequence

from tfperf.engines.plan import Plan
from tfperf.measure import Comparison
from tfperf.search.judging import winner_of
from tfperf.search.objectives import cost, costs_in, pareto_front, undisturbed, within_limits
from tfperf.search.question import Question
from tfperf.trials.trial import Status, Trial, median_seconds

__all__ = ["FINALISTS", "MOST_CONTENDERS", "Standings"]

NEAR = 1.6
"""A plan whose look ends that near to the best one's may be the best: looks are short, apart in time, and a neighbour
on the same core doubles what they see."""

RIVAL = 1.1
"""A process may be luckier than another by less, as with its place in memory."""

FINALISTS = 4
"""Plans that are measured in turns until they are told apart; the defaults come on top."""

MOST_CONTENDERS = 8
"""Plans that are measured in turns before the final."""

FEWER = 0.8
"""A share of the examples a second at a smaller batch: if two larger batches in a row give less, still larger ones are
not tried."""


class Standings:
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
            return [name for name in names if name in front][:MOST_CONTENDERS]
        if not self._question.is_timed:
            return names[:FINALISTS]
        return [name for name in names if not self.is_far(name, names[0])][:MOST_CONTENDERS]

    def is_far(self, name: str, best: str) -> bool:
        """Whether no luck makes one a rival of the best."""
        return self.cost(name) > NEAR * self.cost(best)

    def is_rival(self, name: str, winner: str) -> bool:
        """Whether one was so near to the winner of the final that a lucky process may have decided."""
        of_time_alone = self._question.is_timed and len(self._question.objectives) == 1
        if name == winner or not of_time_alone or not {name, winner} <= set(costs_in(self.final)):
            return True
        return self.final is not None and self.final.ratio(name, winner).estimate <= RIVAL

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
        if len(ran) > 2 and all(trial.examples_per_second < FEWER * ran[-3].examples_per_second for trial in ran[-2:]):
            return f"fewer examples a second from batch {ran[-3].batch} on"
        if seen and not ran:
            return f"it does not run with batch {seen[0].batch}"
        return None

    def _names_of(self, plan: Plan) -> Iterable[str]:
        return self._of_plan.get(plan, ())
