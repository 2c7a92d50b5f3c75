"""Which plans may be the best: those to look at next, and why the others are not looked at."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tfperf.engines.catalog import Engine, find_engine
from tfperf.engines.plan import Plan, Precision
from tfperf.search.space import FIXED_BATCH, Space, with_parts
from tfperf.search.strategy import (
    BEHIND_BATCH,
    BEHIND_PRECISION,
    BEHIND_THREADS,
    GAIN_AT_LEAST,
    GAIN_BATCH,
    GAIN_SEEN_PRECISION,
    GAIN_THREADS,
    GAIN_TRANSFORMATIONS,
    GAIN_UNSEEN_PRECISION,
    GAINED,
    IN_FULL,
    LEADERS,
    LEADING,
    SIBLING,
    SLOWED,
)

__all__ = ["Candidates"]

PARTS = ("threads", "batch", "precision", "transformations")
"""The settings of a plan, in the order in which they are changed."""

BEHIND: Mapping[str, float] = {
    "threads": BEHIND_THREADS.value,
    "batch": BEHIND_BATCH.value,
    "precision": BEHIND_PRECISION.value,
}
"""Part -> how many times the best of all a family may be, both unchanged, and still be tried with that part changed."""

GAIN: Mapping[str, float] = {
    "threads": GAIN_THREADS.value,
    "batch": GAIN_BATCH.value,
    "transformations": GAIN_TRANSFORMATIONS.value,
}
"""Part -> the same, both with all that was found. What a precision gains is told by what it gained others."""

INTEGERS = ("int8", "int8_static")
"""One family may gain by the former what another gains by the latter: both multiply 8-bit integers, with scales of the
activations that are taken in each call or beforehand, and few engines have good kernels for both."""


class Candidates:
    """The plans of a space, of which the costs of those that were looked at tell which of the others may be best."""

    def __init__(
        self,
        space: Space,
        cost_of: Callable[[Plan], float],
        batch_of: Callable[[Plan], int] | None = None,
        *,
        in_full: float = IN_FULL.value,
    ) -> None:
        """Know of nothing yet.

        Args:
            cost_of: a plan's cost, infinite where it was not looked at or does not run.
            batch_of: the batch size at which a plan that takes any was best; None: the middle one.
            in_full: trials that a question may have, at most, to be tried in full.
        """
        self._space, self._cost_of = space, cost_of
        self._batch_of = batch_of or (lambda _: space.middle)
        self._families = _Families(space, cost_of)
        plans = [plan for plan in space.plans() if space.hopeless(plan.precision) is None]
        trials = sum(len(space.question.batches) if plan.batch is None else 1 for plan in plans)
        self.in_full = trials <= in_full

    # ------------------------------------------------------------ what to look at

    def next(self, running: Collection[Plan] = ()) -> list[Plan]:
        """What to look at now that the probes have been; empty: nothing is left that may be best.

        First one engine of each family, in its first precision, with the threads that suited the probes.

        Args:
            running: plans that are being looked at. Nothing is told that depends on what they will show: more of
                their families; of others another precision, while one is tried.
        """
        waited_for = [plan for plan in running if plan not in self._space.defaults]
        busy = {find_engine(plan.engine).family for plan in waited_for}
        if plans := self._new(self._firsts(busy)):
            return sorted(plans, key=lambda plan: plan.batch is None)  # what is compiled ahead takes longest
        if self.in_full:
            return self._new(self._all_left(bool(busy)))
        for family in sorted(self._families, key=self._promise):  # what the best gains spares others a look
            for part in PARTS:
                if family in busy or (part == "precision" and any(map(self._is_changed, waited_for))):
                    break
                if plans := self._new(self._changes(family, part)):
                    return plans
        return [] if busy else self._new(self._siblings())

    def forget(self, plans: Iterable[Plan]) -> None:
        """Take back plans that `next` has given and that were not looked at after all."""
        self._families.seen -= set(plans)

    def forget_but(self, plans: Iterable[Plan]) -> None:
        """Take back all others."""
        self._families.seen &= set(plans)

    def _firsts(self, busy: Collection[str]) -> Iterator[Plan]:
        """For each family that nothing is known to run of, the first engine that was not tried, or not both ways.

        With the batch size fixed, and with any.
        """
        threads, tried = self._best_threads(), self._families.tried_engines()
        for family in self._families:
            if family not in busy and self._families.champion(family) is None:
                engines = self._families.engines(family)
                left = [self._space.first(engine, threads) for engine in engines if engine.name not in tried]
                left += [
                    self._space.first(engine, threads, otherwise=True)
                    for engine in engines
                    if FIXED_BATCH in self._space.transformations(engine)
                ]
                yield from left[:1]

    def _all_left(self, busy: bool) -> list[Plan]:
        """All that facts do not rule out, the best families first.

        Args:
            busy: whether something is being looked at. Until nothing is, it is not known what runs for one batch only.
        """
        left = [plan for plan in self._space.plans() if not self._ruled_out(plan)]
        if busy or not {self._space.batch_alone(plan) for plan in left} <= {*self._families.seen, None}:
            left = [plan for plan in left if self._space.batch_alone(plan) is None]
        return sorted(left, key=lambda plan: self._families.behind_now(find_engine(plan.engine).family))

    def _changes(self, family: str, part: str) -> Iterator[Plan]:
        """The best of a family, and those as near to the best of all, with another setting of one part."""
        plans, most = self._families.by_cost(family), LEADING.value * self._families.best_cost()
        leaders = plans[:1] + [plan for plan in plans[1 : LEADERS.number] if self._cost_of(plan) <= most]
        for leader in leaders:
            for plan in self._settings(leader, part):
                if not self.skip_reason(plan, leader):
                    yield plan

    def _settings(self, plan: Plan, part: str) -> Iterator[Plan]:
        engine, question = find_engine(plan.engine), self._space.question
        if part == "threads" and plan.threads is not None:
            yield from (with_parts(plan, threads=one) for one in _beside(question.threads, plan.threads))
        elif part == "batch" and plan.batch is not None:
            yield from (with_parts(plan, batch=one) for one in _beside(question.batches, plan.batch))
        elif part == "precision":
            yield from (with_parts(plan, precision=one) for one in self._space.precisions(engine))
        elif part == "transformations":
            for changes in self._space.transformations(engine):
                if len(set(changes) ^ set(plan.transformations)) == 1:
                    yield self._space.with_engine(plan, engine, changes, self._batch_of(plan))

    def _siblings(self) -> Iterator[Plan]:
        """The other engines of each family, with its champion's settings."""
        for family in self._families:
            champion = self._families.champion(family)
            for engine in self._families.engines(family):
                if champion is None or champion.precision not in self._space.precisions(engine):
                    continue
                changes = tuple(one for one in champion.transformations if one in engine.transformations)
                plan = self._space.with_engine(champion, engine, changes, self._batch_of(champion))
                if engine.name != champion.engine and not self.skip_reason(plan, champion):
                    yield plan

    def _best_threads(self) -> int:
        """The number with which the probes were fastest."""
        probes = self._space.probes()
        return min(probes, key=self._cost_of).threads or 1 if probes else self._space.question.threads[-1]

    def _new(self, plans: Iterable[Plan]) -> list[Plan]:
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._families.seen]
        self._families.seen |= set(new)
        return new

    def _is_changed(self, plan: Plan) -> bool:
        """Whether a plan has another precision than its family is looked at with first."""
        return plan.precision not in self._families.first_precisions(find_engine(plan.engine).family)

    def _promise(self, family: str) -> float:
        """How many times the best of all a family would be, with the most that a precision may still gain it."""
        seen = {plan.precision for plan in self._families.seen if find_engine(plan.engine).family == family}
        left = {one for engine in self._families.engines(family) for one in self._space.precisions(engine)} - seen
        return self._families.behind_now(family) / max([1.0, *map(self._gain_by, left)])

    # ------------------------------------------------------------ why others are not looked at

    def why_not(self, plan: Plan, cut_short: str) -> str:
        """Why a plan was not looked at, in words.

        Args:
            cut_short: what ended the search before all was looked at that may be best, in words; empty: nothing.
        """
        family = find_engine(plan.engine).family
        if cut_short and self._is_left(family):
            return self._ruled_out(plan) or cut_short
        if why := self.skip_reason(plan):
            return why
        if cut_short:
            return cut_short
        champion = self._families.champion(family)
        if champion is not None and plan.engine != champion.engine:
            return _lost_to(champion)
        return f"some of what sets it apart from {champion} was no gain by itself"

    def skip_reason(self, plan: Plan, base: Plan | None = None) -> str:
        """Why a plan cannot be the best, as far as is known now, in words; empty: it may be.

        By this the search decides, and by this it tells.

        Args:
            base: the plan that it is a change of; None: the best of its family.
        """
        if why := self._ruled_out(plan):
            return why
        engine = find_engine(plan.engine)
        champion = self._families.champion(engine.family)
        if champion is None:
            return f"no engine with the kernels of {engine.family} runs this net"
        if self.in_full:
            return ""
        changed = _changed_parts(base or champion, plan)
        if why := self._too_far_behind(champion, changed):
            return why
        if "engine" in changed and (why := self._why_not_sibling(engine, champion)):
            return why
        if "threads" in changed and (why := self._why_not_threads(base or champion, plan.threads)):
            return why
        return self._why_not_precision(engine, plan.precision) if "precision" in changed else ""

    def _is_left(self, family: str) -> bool:
        """Whether nothing is known to run of a family, and something was not looked at that may be the first to."""
        firsts = self._firsts({*self._families} - {family})
        return any(plan not in self._families.seen for plan in firsts)

    def _ruled_out(self, plan: Plan) -> str:
        """What makes a plan no candidate, whatever others cost; empty: nothing."""
        engine, fixed = find_engine(plan.engine), self._space.batch_alone(plan)
        if why := self._space.hopeless(plan.precision):
            return why
        if fixed in self._families.seen and self._cost_of(fixed) < float("inf"):
            return "the same with its batch size fixed was looked at, and that makes none slower"
        if engine.spends_time_in_python:
            return f"{plan.engine} spends its time in Python, whatever its settings"
        if self._space.question.is_timed and self._space.converts_to_float32(engine, plan.precision):
            return f"nothing here computes in {plan.precision}: each number would be converted to float32 and back"
        return ""

    def _too_far_behind(self, champion: Plan, changed: Collection[str]) -> str:
        """Why no change of these parts makes the best of a family the best of all; empty: one may."""
        family = find_engine(champion.engine).family
        for part in changed:
            # With other threads another family may have become faster before this one could
            threads = champion.threads if part == "threads" else None
            behind, now = self._families.behind(family, threads), self._families.behind_now(family, threads)
            if behind > BEHIND.get(part, float("inf")):
                return f"the best with the kernels of {family}, {champion}, {_behind_words(behind)}"
            if now > GAIN.get(part, float("inf")):
                return f"{champion} takes {now:.1f}x as long as the best of all, more than other {part} gain"
        return ""

    def _why_not_sibling(self, engine: Engine, champion: Plan) -> str:
        """Why an engine is not better than another of its family with the same settings; empty: it may be."""
        if self._calls_too_slowly(engine):
            return "a call of a tf.function from Python takes longer than the best of all"
        # Both: unchanged, families may have been seen in other precisions
        behind = min(self._families.behind(engine.family), self._families.behind_now(engine.family))
        if behind > SIBLING.value:
            return f"{champion} has the same kernels, and {_behind_words(behind)}"
        ours, theirs = map(self._families.plain_cost, (engine.name, champion.engine))
        if engine.name in self._families.tried_engines() and ours > SIBLING.value * theirs:
            return _lost_to(champion)
        return ""

    def _calls_too_slowly(self, engine: Engine) -> bool:
        """Whether the way it is called takes longer than the best plan in all, whatever it computes.

        The same kernels called by tf.function(net), and without Python, tell what a tf.function's Python takes.
        """
        if not engine.called_as_function or not self._space.question.is_timed:
            return False
        by_function = [plan for plan in self._space.defaults if find_engine(plan.engine).called_as_function]
        if not by_function:
            return False
        family = find_engine(by_function[0].engine).family
        leanest = [one.name for one in self._families.engines(family) if one.place_in_family == 0]
        without = min(map(self._families.plain_cost, leanest), default=float("inf"))
        takes = self._cost_of(by_function[0]) - without
        return float("inf") > takes > SIBLING.value * self._families.best_cost()

    def _why_not_threads(self, base: Plan, threads: int | None) -> str:
        """Why a plan is not tried with another number of threads, from what that did to the probes; empty: it may be.

        A plan of their own family may be in any case.
        """
        probes, engine = self._space.probes(), find_engine(base.engine)
        costs = {one.threads: self._cost_of(one) for one in probes if find_engine(one.engine).family != engine.family}
        before, after = costs.get(base.threads, 0.0), costs.get(threads, 0.0)
        if not 0 < before < float("inf") or not 0 < after < float("inf"):
            return ""
        slowed = after / before
        if slowed <= (1 / GAINED.value if engine.compiled else SLOWED.value):
            return ""
        what = f"{threads} threads in place of {base.threads} made {probes[0].engine} {slowed:.2f}x as slow"
        compiled = engine.compiled and slowed <= SLOWED.value
        return f"{what}, and each plan of {base.engine} is compiled" if compiled else what

    def _why_not_precision(self, engine: Engine, precision: Precision) -> str:
        """Why an engine is not the best in a precision, from what that did to others; empty: it may be."""
        alike = [one for one in self._families.seen if (one.engine, one.precision) == (engine.name, precision)]
        if alike and min(map(self._cost_of, alike)) == float("inf"):
            return f"no plan of {engine.name} in {precision} ran that was looked at"
        family, best = engine.family, self._families.best_cost()
        needed = self._families.plain_cost_of(family) / best if 0 < best < float("inf") else 1.0
        if needed <= (gain := self._gain_by(precision)):
            return ""
        if precision in self._families.first_precisions(family):
            return f"in {precision} {family} takes {needed:.1f}x as long as the best of all"
        return f"in {precision} {family} would have to be {needed:.1f}x as fast; it gains {gain:.1f}x at most"

    def _gain_by(self, precision: str) -> float:
        """What a precision may gain: more than it, or its like, did where seen; what bytes may, if it was not."""
        alike = INTEGERS if precision in INTEGERS else (precision,)
        least = GAIN_AT_LEAST if self._families.gains(precision) else GAIN_UNSEEN_PRECISION
        seen = (GAIN_SEEN_PRECISION.value * gain for one in alike for gain in self._families.gains(one))
        return max([least.value, *seen])


class _Families:
    """The families of engines in a space, each with the plans that were seen of it, and what these cost.

    Attributes:
        seen: plans that are looked at, whether or not it is known what they cost.
    """

    def __init__(self, space: Space, cost_of: Callable[[Plan], float]) -> None:
        self._space, self._cost_of = space, cost_of
        self.seen = {*space.probes(), *space.defaults}

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(dict.fromkeys(engine.family for engine in self._space.engines))

    def engines(self, family: str) -> list[Engine]:
        """Engines that may be tried, those with the leanest calls first."""
        engines = [
            one
            for one in self._space.engines
            if one.family == family and self._space.precisions(one) and not one.spends_time_in_python
        ]
        return sorted(engines, key=lambda one: one.place_in_family)

    def tried_engines(self) -> set[str]:
        """Those of which a plan was seen that was asked for."""
        return {plan.engine for plan in self.seen if self._is_asked(plan)}

    def by_cost(self, family: str) -> list[Plan]:
        """The plans of a family that run, the best first."""
        plans = [
            plan
            for plan in self.seen
            if find_engine(plan.engine).family == family and self._is_asked(plan) and self._cost_of(plan) < float("inf")
        ]
        return sorted(plans, key=lambda plan: (self._cost_of(plan), str(plan)))

    def champion(self, family: str) -> Plan | None:
        """The best of a family; None: nothing is known to run."""
        return next(iter(self.by_cost(family)), None)

    def best_cost(self, threads: int | None = None) -> float:
        """The least of all that was seen, or was seen with so many threads; infinite: nothing ran."""
        return min(map(self._cost_of, self._with_threads(threads)), default=float("inf"))

    def behind_now(self, family: str, threads: int | None = None) -> float:
        """How many times the best of all, each with all that was found; or of all with so many threads."""
        best, champion = self.best_cost(threads), self.champion(family)
        return self._cost_of(champion) / best if champion is not None and best > 0 else float("inf")

    def behind(self, family: str, threads: int | None = None) -> float:
        """How many times the best of all, each without precision or transformations changed."""
        best = min((self.plain_cost_of(one, threads) for one in self), default=float("inf"))
        return self.plain_cost_of(family, threads) / best if best < float("inf") else float("inf")

    def plain_cost(self, engine: str, threads: int | None = None) -> float:
        """The least of an engine with no precision or transformation changed; of a fixed batch, if it needs that."""
        first = {one.name: self._space.precisions(one)[:1] for one in self._space.engines}
        plans = [
            plan
            for plan in self._with_threads(threads)
            if plan.engine == engine and (plan.precision,) == first[engine] and self._cost_of(plan) < float("inf")
        ]
        unchanged = [plan for plan in plans if not plan.transformations]
        fixed = [plan for plan in plans if plan.transformations == FIXED_BATCH]
        return min(map(self._cost_of, unchanged or fixed), default=float("inf"))

    def plain_cost_of(self, family: str, threads: int | None = None) -> float:
        """The same of all engines of a family."""
        engines = [engine.name for engine in self._space.engines if engine.family == family]
        return min((self.plain_cost(engine, threads) for engine in engines), default=float("inf"))

    def first_precisions(self, family: str) -> set[str]:
        """With which engines of a family are looked at first."""
        return {one for engine in self.engines(family) for one in self._space.precisions(engine)[:1]}

    def gains(self, precision: str) -> list[float]:
        """How many times as fast it made each family in which it was seen."""
        gains = []
        for family in self:
            found = [self._cost_of(plan) for plan in self.by_cost(family) if plan.precision == precision]
            if found and min(found) > 0 and precision not in self.first_precisions(family):
                gains.append(self.plain_cost_of(family) / min(found))
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


def _behind_words(behind: float) -> str:
    """What a family takes, unchanged but for threads, beside the best of all; infinite: it does not run so."""
    if behind == float("inf"):
        return "does not run where only the threads are changed"
    return f"takes {behind:.1f}x as long as the best of all"


def _lost_to(champion: Plan) -> str:
    return f"{champion} has the same kernels and was faster, or these settings made it slower"


def _changed_parts(base: Plan, plan: Plan) -> list[str]:
    """What sets a plan apart from another; of another engine also its batch and transformations are others."""
    parts = ["engine"] if plan.engine != base.engine else []
    parts += [part for part in ("threads", "precision") if getattr(plan, part) != getattr(base, part)]
    if parts[:1] == ["engine"]:
        return parts
    if plan.transformations != base.transformations:
        return [*parts, "transformations"]
    return [*parts, "batch"] if plan.batch != base.batch else parts


def _beside(numbers: tuple[int, ...], one: int) -> tuple[int, ...]:
    """The next smaller and the next larger."""
    place = numbers.index(one)
    return numbers[max(0, place - 1) : place] + numbers[place + 1 : place + 2]
