"""Which plans to look at next: the best of each kind, with one part of it changed."""

from collections.abc import Callable, Collection, Iterable, Iterator

from tfperf.engines.catalog import find_engine
from tfperf.engines.plan import Plan
from tfperf.search.chances import PARTS, SIBLING, Chances
from tfperf.search.kinds import Kinds, kind_of
from tfperf.search.space import FIXED_BATCH, Space

__all__ = ["Champions"]

LEADING = 1.1
"""A plan so near to the best is changed as the best is: one look may be that wrong."""

LEADERS = 3
"""Plans of a kind that are changed, at most."""


class Champions:
    """The best plan of each kind of engine, so far, and those beside it."""

    def __init__(
        self, space: Space, cost_of: Callable[[Plan], float], batch_of: Callable[[Plan], int] | None = None
    ) -> None:
        """Know of nothing yet.

        Args:
            cost_of: a plan's cost, infinite where it was not looked at or does not run.
            batch_of: the batch size at which a plan that takes any was best; None: the middle one.
        """
        self._space, self._cost_of = space, cost_of
        self._batch_of = batch_of or (lambda _: space.middle)
        self._kinds = Kinds(space, cost_of)
        self._chances = Chances(space, self._kinds)

    def next(self, running: Collection[Plan] = ()) -> list[Plan]:
        """What to look at now that the probes have been; empty: nothing is left that may be best.

        First one engine of each kind, in its first precision, with the threads that suited the probes.

        Args:
            running: plans that are being looked at. Nothing is told that depends on what they will show: more of
                their kinds; of others another precision, while one is tried.
        """
        waited_for = [plan for plan in running if plan not in self._space.defaults]
        busy = {kind_of(plan.engine) for plan in waited_for}
        if plans := self._new(self._firsts_of_kinds(busy)):
            return sorted(plans, key=lambda plan: plan.batch is None)  # what is compiled ahead takes longest
        for kind in sorted(self._kinds, key=self._chances.promise):  # what the best gains spares others a look
            for part in PARTS:
                if kind in busy or (part == "precision" and any(map(self._is_changed, waited_for))):
                    break
                if self._chances.by_changing(kind, part) and (plans := self._new(self._changes(kind, part))):
                    return plans
        return [] if busy else self._new(self._siblings())

    def why_not(self, plan: Plan, out_of_time: bool) -> str:
        """Why a plan was not looked at, in words."""
        return self._chances.why_not(plan, out_of_time)

    def _firsts_of_kinds(self, busy: Collection[str]) -> Iterator[Plan]:
        """For each kind that nothing is known to run of, the first engine that was not tried, or not both ways.

        With the batch size fixed, and with any.
        """
        threads, tried = self._best_threads(), self._kinds.tried_engines()
        for kind in self._kinds:
            if kind not in busy and self._kinds.champion(kind) is None:
                engines = self._kinds.engines(kind)
                left = [self._space.first(engine, threads) for engine in engines if engine.name not in tried]
                left += [
                    self._space.first(engine, threads, otherwise=True)
                    for engine in engines
                    if FIXED_BATCH in self._space.transformations(engine)
                ]
                yield from left[:1]

    def _changes(self, kind: str, part: str) -> Iterator[Plan]:
        """The best of a kind, and those as near to the best of all, with another setting of one part."""
        plans, most = self._kinds.by_cost(kind), LEADING * self._kinds.best_cost()
        leaders = plans[:1] + [plan for plan in plans[1:LEADERS] if self._cost_of(plan) <= most]
        for leader in leaders:
            yield from self._settings(leader, part)

    def _settings(self, plan: Plan, part: str) -> Iterator[Plan]:
        engine, question = find_engine(plan.engine), self._space.question
        if part == "threads" and plan.threads is not None:
            beside = _beside(question.threads, plan.threads)
            yield from (_with(plan, threads=one) for one in beside if self._chances.with_threads(plan, one))
        elif part == "batch" and plan.batch is not None:
            yield from (_with(plan, batch=one) for one in _beside(question.batches, plan.batch))
        elif part == "precision":
            for precision in self._space.precisions(engine):
                if self._chances.in_precision(engine, precision):
                    yield _with(plan, precision=precision)
        elif part == "transformations":
            for changes in self._space.transformations(engine):
                opened = set(plan.transformations) - set(changes) == set(FIXED_BATCH)
                if opened and self._space.fixes_batch(engine):
                    continue
                if len(set(changes) ^ set(plan.transformations)) == 1:
                    fixed = engine.fixed_batch or "fixed_batch" in changes
                    batch = (plan.batch or self._batch_of(plan)) if fixed else None
                    yield _with(plan, transformations=changes, batch=batch)

    def _siblings(self) -> Iterator[Plan]:
        """The other engines of a kind that is near the best, with its champion's settings, unless they were slow."""
        for kind in self._kinds:
            champion = self._kinds.champion(kind)
            if champion is None or self._kinds.behind(kind) > SIBLING:
                continue
            base, seen = self._kinds.plain_cost(champion.engine), self._kinds.tried_engines()
            for engine in self._kinds.engines(kind):
                if engine.name == champion.engine or self._chances.calls_too_slowly(engine):
                    continue
                if engine.name in seen and self._kinds.plain_cost(engine.name) > SIBLING * base:
                    continue
                changes = tuple(one for one in champion.transformations if one in engine.transformations)
                if champion.precision in self._space.precisions(engine):
                    fixed = engine.fixed_batch or "fixed_batch" in changes
                    batch = (champion.batch or self._batch_of(champion)) if fixed else None
                    yield _with(champion, engine=engine.name, transformations=changes, batch=batch)

    def _best_threads(self) -> int:
        """The number with which the probes were fastest."""
        probes = self._space.probes()
        return min(probes, key=self._cost_of).threads or 1 if probes else self._space.question.threads[-1]

    def _new(self, plans: Iterable[Plan]) -> list[Plan]:
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._kinds.seen]
        self._kinds.seen |= set(new)
        return new

    def _is_changed(self, plan: Plan) -> bool:
        """Whether a plan has another precision than its kind is looked at with first."""
        return plan.precision not in self._kinds.first_precisions(kind_of(plan.engine))


def _with(plan: Plan, **changes: object) -> Plan:
    return Plan(**{**dict(plan), **changes})


def _beside(numbers: tuple[int, ...], one: int) -> tuple[int, ...]:
    """The next smaller and the next larger."""
    place = numbers.index(one)
    return numbers[max(0, place - 1) : place] + numbers[place + 1 : place + 2]
