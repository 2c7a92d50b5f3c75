"""What is known of each kind of engine: what was seen of it so far, and what that cost."""

from collections.abc import Callable, Iterator, Mapping

from tfperf.engines.catalog import Engine
from tfperf.engines.plan import Plan
from tfperf.search.space import FIXED_BATCH, Space

__all__ = ["IN_PYTHON", "Kinds", "kind_of"]

KERNELS: Mapping[str, str] = {
    "predict": "TensorFlow",
    "eager": "TensorFlow",
    "graph": "TensorFlow",
    "saved_model": "TensorFlow",
    "frozen": "TensorFlow",
    "c_api": "TensorFlow",
    "xla": "XLA",
    "xla_aot": "XLA",
}
"""Engine -> whose kernels compute, where several engines call the same: what changes one, changes the others alike."""

FIRST_OF_KIND = ("frozen", "xla_aot", "saved_model", "xla", "graph", "c_api")
"""The engine that is tried for all engines with the same kernels: the leanest calls come first."""

IN_PYTHON = ("predict", "eager")
"""Engines that spend their time in Python, where threads change nothing; the defaults have them."""


def kind_of(engine: str) -> str:
    """Whose kernels an engine of this name calls: its own, or those that it shares."""
    return KERNELS.get(engine, engine)


class Kinds:
    """The kinds of a space, each with the plans that were seen of it.

    Attributes:
        seen: plans that are looked at, whether or not it is known what they cost.
    """

    def __init__(self, space: Space, cost_of: Callable[[Plan], float]) -> None:
        """Know of nothing but the plans that are looked at in any case.

        Args:
            cost_of: a plan's cost, infinite where it was not looked at or does not run.
        """
        self._space, self.cost_of = space, cost_of
        self.seen = {*space.probes(), *space.defaults}

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(dict.fromkeys(kind_of(engine.name) for engine in self._space.engines))

    def engines(self, kind: str) -> list[Engine]:
        """Engines that may be tried, in the order of `FIRST_OF_KIND`."""
        engines = [
            one
            for one in self._space.engines
            if kind_of(one.name) == kind and self._space.precisions(one) and one.name not in IN_PYTHON
        ]
        places = {name: place for place, name in enumerate(FIRST_OF_KIND)}
        return sorted(engines, key=lambda one: places.get(one.name, len(places)))

    def tried_engines(self) -> set[str]:
        """Those of which a plan was seen that was asked for."""
        return {plan.engine for plan in self.seen if self._is_asked(plan)}

    def by_cost(self, kind: str) -> list[Plan]:
        """The plans of a kind that run, the best first."""
        plans = [
            plan
            for plan in self.seen
            if kind_of(plan.engine) == kind and self._is_asked(plan) and self.cost_of(plan) < float("inf")
        ]
        return sorted(plans, key=lambda plan: (self.cost_of(plan), str(plan)))

    def champion(self, kind: str) -> Plan | None:
        """The best of a kind; None: nothing is known to run."""
        return next(iter(self.by_cost(kind)), None)

    def best_cost(self, threads: int | None = None) -> float:
        """The least of all that was seen, or was seen with so many threads; infinite: nothing ran."""
        costs = (self.cost_of(plan) for plan in self._with_threads(threads))
        return min(costs, default=float("inf"))

    def behind_now(self, kind: str, threads: int | None = None) -> float:
        """How many times the best of all, each with all that was found; or of all with so many threads."""
        best, champion = self.best_cost(threads), self.champion(kind)
        return self.cost_of(champion) / best if champion is not None and best > 0 else float("inf")

    def behind(self, kind: str, threads: int | None = None) -> float:
        """How many times the best of all, each without precision or transformations changed."""
        best = min((self.plain_cost_of(one, threads) for one in self), default=float("inf"))
        return self.plain_cost_of(kind, threads) / best if best < float("inf") else float("inf")

    def plain_cost(self, engine: str, threads: int | None = None) -> float:
        """The least of an engine with no precision or transformation changed; of a fixed batch, if it needs that."""
        first = {one.name: self._space.precisions(one)[:1] for one in self._space.engines}
        plans = [
            plan
            for plan in self._with_threads(threads)
            if plan.engine == engine and (plan.precision,) == first[engine] and self.cost_of(plan) < float("inf")
        ]
        unchanged = [plan for plan in plans if not plan.transformations]
        fixed = [plan for plan in plans if plan.transformations == FIXED_BATCH]
        return min(map(self.cost_of, unchanged or fixed), default=float("inf"))

    def plain_cost_of(self, kind: str, threads: int | None = None) -> float:
        """The same of all engines of a kind."""
        engines = [engine.name for engine in self._space.engines if kind_of(engine.name) == kind]
        return min((self.plain_cost(engine, threads) for engine in engines), default=float("inf"))

    def first_precisions(self, kind: str) -> set[str]:
        """With which engines of a kind are looked at first."""
        return {one for engine in self.engines(kind) for one in self._space.precisions(engine)[:1]}

    def gains(self, precision: str) -> list[float]:
        """How many times as fast it made each kind in which it was seen."""
        gains = []
        for kind in self:
            found = [self.cost_of(plan) for plan in self.by_cost(kind) if plan.precision == precision]
            if found and min(found) > 0 and precision not in self.first_precisions(kind):
                gains.append(self.plain_cost_of(kind) / min(found))
        return gains

    def _is_asked(self, plan: Plan) -> bool:
        """Whether a plan is in the space: the defaults may not be."""
        engines = [one for one in self._space.engines if one.name == plan.engine]
        return plan.threads in self._space.question.threads and any(
            plan.precision in self._space.precisions(one) for one in engines
        )

    def _with_threads(self, threads: int | None) -> list[Plan]:
        """What was seen with so many; None: all."""
        return [plan for plan in self.seen if threads is None or plan.threads == threads]
