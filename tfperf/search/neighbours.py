"""Which plans to look at next: the best of each kind, with one part of it changed."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tfperf.engines.catalog import Engine, find_engine
from tfperf.engines.plan import Plan, Precision
from tfperf.search.space import Space

__all__ = ["Champions"]

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
"""Of engines with the same kernels, the one that is looked at for all: the leanest calls come first."""

CALLED_FROM_PYTHON = ("graph", "xla", "saved_model")
"""Engines whose every call goes through the Python of a tf.function."""

IN_PYTHON = ("predict", "eager")
"""Engines that spend their time in Python, where threads change nothing; the defaults have them."""

BEHIND = {"threads": 2.0, "batch": 3.0, "precision": 2.5}
"""Part of a plan -> how many times slower than the best a kind may be, both without any change but the threads, and
still be tried with other settings of it: no setting has made so much more of one kind than of another."""

GAIN = {"threads": 2.0, "batch": 3.0, "precision": 4.0, "transformations": 1.6}
"""Part of a plan -> how many times slower than the best a kind may be, both with all that was found, and still be tried
with other settings of it: more no setting has gained. The narrowest numbers have a quarter of float32's bytes, which
is what counts for a precision that nothing was seen in yet."""

MORE = 2.0
"""Times as much as one kind gained by a precision, another may gain by it: the same numbers suit the kernels of one
better than those of another (resnet18 with AMX: 8-bit integers made LiteRT 9.6x as fast, OpenVINO 4.9x)."""

AT_LEAST = 1.5
"""That much a precision may gain a kind whatever it did for others, of which a short look may be wrong, and whose
kernels are others."""

INTEGERS = ("int8", "int8_static")
"""One kind may gain by the former what another gains by the latter: both multiply 8-bit integers, with scales of the
activations that are taken in each call or beforehand, and few engines have good kernels for both."""

SLOWED = 1.2
"""A number of threads that slowed the probes by more is not tried with other kinds: a net too small for so many threads
in one engine is too small in all."""

GAINED = 1.1
"""A number of threads that gained the probes less is not tried with an engine whose plans are compiled, each in as long
as several looks take."""

LEADING = 1.1
"""A plan so near to the best is changed as the best is: one look may be that wrong."""

LEADERS = 3
"""Plans of a kind that are changed, at most."""

SIBLING = 1.5
"""An engine that was so many times slower than another of its kind has no chance against it with like settings; and a
kind so far behind the best of all is not worth a look at more of its engines."""


class Champions:
    """The best plan of each kind of engine, so far."""

    def __init__(
        self, space: Space, cost_of: Callable[[Plan], float], batch_of: Callable[[Plan], int] | None = None
    ) -> None:
        """Know of nothing yet.

        Args:
            cost_of: a plan's cost, infinite where it was not looked at or does not run.
            batch_of: the batch size at which a plan that takes any was best; None: the middle one.
        """
        self._space, self._cost_of = space, cost_of
        self._batch_of = batch_of or (lambda _: self._middle())
        self._seen = {*space.probes(), *space.defaults}

    def next(self, running: Collection[Plan] = ()) -> list[Plan]:
        """What to look at now that the probes have been; empty: nothing is left that may be best.

        First one engine of each kind, in its first precision, with the threads that suited the probes.

        Args:
            running: plans that are being looked at. Nothing is told that depends on what they will show: more of
                their kinds; of others another precision, while one is tried.
        """
        waited_for = [plan for plan in running if plan not in self._space.defaults]
        busy = set(map(self._kind_of, waited_for))
        if plans := self._new(self._firsts_of_kinds(busy)):
            return sorted(plans, key=lambda plan: plan.batch is None)  # what is compiled ahead takes longest
        for kind in sorted(self._kinds(), key=self._promise):  # the best first: what it gains spares others a look
            for part in GAIN:
                if kind in busy or (part == "precision" and any(map(self._is_changed, waited_for))):
                    break
                if plans := self._new(self._changes(kind, part)):
                    return plans
        return [] if busy else self._new(self._siblings())

    def why_not(self, plan: Plan, out_of_time: bool) -> str:
        """Why a plan was not looked at, in words."""
        if why := self._space.hopeless(plan.precision):
            return why
        if out_of_time:
            return "the time was up"
        if plan.engine in IN_PYTHON:
            return f"{plan.engine} spends its time in Python, whatever its settings"
        kind = self._kind_of(plan)
        champion = self._champion(kind)
        if champion is None:
            return f"no engine with the kernels of {kind} runs this net"
        changed = "precision" if plan.precision != champion.precision else "threads"
        if (behind := self._behind(kind)) > BEHIND[changed]:
            return f"the best with the kernels of {kind}, {champion}, takes {behind:.1f}x as long as the best of all"
        if self._space.question.is_timed and self._space.converts_to_float32(find_engine(plan.engine), plan.precision):
            return f"nothing here computes in {plan.precision}: each number would be converted to float32 and back"
        if self._calls_too_slowly(find_engine(plan.engine)):
            return "a call of a tf.function from Python takes longer than the best of all"
        if plan.engine != champion.engine and behind > SIBLING:
            return f"{champion} has the same kernels, and takes {behind:.1f}x as long as the best of all"
        if plan.threads and (why := self._why_not_threads(champion, plan.threads)):
            return why
        needed, gain = self._gain_needed(kind), self._gain_by(plan.precision)
        if plan.precision not in {champion.precision, *self._first_precisions(kind)} and needed > gain:
            return f"in {plan.precision} {kind} would have to be {needed:.1f}x as fast; it gains {gain:.1f}x at most"
        if (now := self._behind_now(kind)) > min(GAIN.values()):
            return f"{champion} has the same kernels, and takes {now:.1f}x as long as the best of all"
        if plan.engine != champion.engine:
            return f"{champion} has the same kernels and was faster, or these settings made it slower"
        return f"some of what sets it apart from {champion} was no gain by itself"

    def _firsts_of_kinds(self, busy: Collection[str]) -> Iterator[Plan]:
        """For each kind that nothing is known to run of, the first engine that was not tried."""
        threads = self._best_threads()
        for kind in (one for one in self._kinds() if one not in busy):
            tried = {plan.engine for plan in self._seen if self._asked(plan)}
            if self._champion(kind) is None and (left := [one for one in self._of_kind(kind) if one.name not in tried]):
                yield self._plain(left[0], threads)

    def _of_kind(self, kind: str) -> list[Engine]:
        """Engines that may be tried, in the order of `FIRST_OF_KIND`."""
        engines = [
            one
            for one in self._space.engines
            if _kind(one) == kind and self._space.precisions(one) and one.name not in IN_PYTHON
        ]
        places = {name: place for place, name in enumerate(FIRST_OF_KIND)}
        return sorted(engines, key=lambda one: places.get(one.name, len(places)))

    def _changes(self, kind: str, part: str) -> Iterator[Plan]:
        """The champions of a kind, if it is near enough to the best, with another setting of one part."""
        champion = self._champion(kind)
        # With other threads another kind may have become faster before this one could
        threads = champion.threads if champion is not None and part == "threads" else None
        near = part == "precision" or self._behind_now(kind, threads) <= GAIN[part]
        if near and self._behind(kind, threads) <= BEHIND.get(part, float("inf")):
            for leader in self._leaders(kind):
                yield from self._settings(leader, part)

    def _settings(self, plan: Plan, part: str) -> Iterator[Plan]:
        engine, question = find_engine(plan.engine), self._space.question
        if part == "threads" and plan.threads is not None:
            beside = _beside(question.threads, plan.threads)
            yield from (_with(plan, threads=one) for one in beside if not self._why_not_threads(plan, one))
        elif part == "batch" and plan.batch is not None:
            yield from (_with(plan, batch=one) for one in _beside(question.batches, plan.batch))
        elif part == "precision":
            for precision in self._space.precisions(engine):
                if self._gain_needed(_kind(engine)) <= self._gain_by(precision) and self._may_run(engine, precision):
                    yield _with(plan, precision=precision)
        elif part == "transformations":
            for changes in self._space.transformations(engine):
                if len(set(changes) ^ set(plan.transformations)) == 1:
                    fixed = engine.fixed_batch or "fixed_batch" in changes
                    batch = (plan.batch or self._batch_of(plan)) if fixed else None
                    yield _with(plan, transformations=changes, batch=batch)

    def _siblings(self) -> Iterator[Plan]:
        """The other engines of a kind that is near the best, with its champion's settings, unless they were slow."""
        for kind in self._kinds():
            champion = self._champion(kind)
            if champion is None or self._behind(kind) > SIBLING:
                continue
            base = self._plain_cost(champion.engine)
            seen = {plan.engine for plan in self._seen if self._asked(plan)}
            for engine in self._of_kind(kind):
                if engine.name == champion.engine or self._calls_too_slowly(engine):
                    continue
                if engine.name in seen and self._plain_cost(engine.name) > SIBLING * base:
                    continue
                changes = tuple(one for one in champion.transformations if one in engine.transformations)
                if champion.precision in self._space.precisions(engine):
                    fixed = engine.fixed_batch or "fixed_batch" in changes
                    batch = (champion.batch or self._batch_of(champion)) if fixed else None
                    yield _with(champion, engine=engine.name, transformations=changes, batch=batch)

    def _calls_too_slowly(self, engine: Engine) -> bool:
        """Whether the way it is called takes longer than the best plan in all, whatever it computes.

        The same kernels called by tf.function(net), and without Python, tell what a tf.function's Python takes.
        """
        if engine.name not in CALLED_FROM_PYTHON or not self._space.question.is_timed:
            return False
        by_function = min((self._cost_of(plan) for plan in self._space.defaults if plan.engine == "graph"), default=0.0)
        best = min(map(self._cost_of, self._seen), default=float("inf"))
        return float("inf") > by_function - self._plain_cost("frozen") > SIBLING * best

    def _plain(self, engine: Engine, threads: int) -> Plan:
        batch = self._middle() if engine.fixed_batch else None
        return Plan(engine=engine.name, precision=self._space.precisions(engine)[0], threads=threads, batch=batch)

    def _middle(self) -> int:
        batches = self._space.question.batches
        return batches[len(batches) // 2]

    def _why_not_threads(self, plan: Plan, threads: int) -> str:
        """Why a plan is not tried with another number of threads, from what that did to the probes; empty: it may be.

        A plan of their own kind may be in any case.
        """
        kind = self._kind_of(plan)
        costs = {one.threads: self._cost_of(one) for one in self._space.probes() if self._kind_of(one) != kind}
        before, after = costs.get(plan.threads, 0.0), costs.get(threads, 0.0)
        if not 0 < before < float("inf") or not 0 < after < float("inf"):
            return ""
        slowed, compiled = after / before, find_engine(plan.engine).compiled
        if slowed <= (1 / GAINED if compiled else SLOWED):
            return ""
        probe, *_ = self._space.probes()
        what = f"{threads} threads in place of {plan.threads} made {probe.engine} {slowed:.2f}x as slow"
        return f"{what}, and each plan of {plan.engine} is compiled" if compiled and slowed <= SLOWED else what

    def _best_threads(self) -> int:
        """The number with which the probes were fastest."""
        probes = self._space.probes()
        return min(probes, key=self._cost_of).threads or 1 if probes else self._space.question.threads[-1]

    def _new(self, plans: Iterable[Plan]) -> list[Plan]:
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._seen]
        self._seen |= set(new)
        return new

    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(map(_kind, self._space.engines)))

    def _champion(self, kind: str) -> Plan | None:
        return next(iter(self._by_cost(kind)), None)

    def _leaders(self, kind: str) -> list[Plan]:
        """The best of a kind, and those that are as near to the best of all."""
        plans, most = self._by_cost(kind), LEADING * min(map(self._cost_of, self._seen), default=0.0)
        return plans[:1] + [plan for plan in plans[1:LEADERS] if self._cost_of(plan) <= most]

    def _by_cost(self, kind: str) -> list[Plan]:
        plans = [
            plan
            for plan in self._seen
            if self._kind_of(plan) == kind and self._asked(plan) and self._cost_of(plan) < float("inf")
        ]
        return sorted(plans, key=lambda plan: (self._cost_of(plan), str(plan)))

    def _behind_now(self, kind: str, threads: int | None = None) -> float:
        """How many times the best of all, each with all that was found; or of all with so many threads."""
        best = min(map(self._cost_of, self._with_threads(threads)), default=float("inf"))
        champion = self._champion(kind)
        return self._cost_of(champion) / best if champion is not None and best > 0 else float("inf")

    def _promise(self, kind: str) -> float:
        """How many times the best of all a kind would be, with the most that a precision may still gain it."""
        seen = {plan.precision for plan in self._seen if self._kind_of(plan) == kind}
        left = {one for engine in self._of_kind(kind) for one in self._space.precisions(engine)} - seen
        return self._behind_now(kind) / max([1.0, *map(self._gain_by, left)])

    def _may_run(self, engine: Engine, precision: Precision) -> bool:
        """Whether an engine may do better in a precision: not if it converts, nor if what was looked at did not run."""
        if self._space.question.is_timed and self._space.converts_to_float32(engine, precision):
            return False
        costs = [self._cost_of(one) for one in self._seen if (one.engine, one.precision) == (engine.name, precision)]
        return not costs or min(costs) < float("inf")

    def _gain_needed(self, kind: str) -> float:
        """How many times as fast a kind must become to be the best, from what it is without any change."""
        best = min(map(self._cost_of, self._seen), default=float("inf"))
        return self._plain_cost_of(kind) / best if 0 < best < float("inf") else 1.0

    def _gain_by(self, precision: str) -> float:
        """What a precision may gain: more than it, or its like, did where seen; what bytes may, if it was not."""
        alike = INTEGERS if precision in INTEGERS else (precision,)
        least = AT_LEAST if self._gains(precision) else GAIN["precision"]
        return max([least, *(MORE * gain for one in alike for gain in self._gains(one))])

    def _gains(self, precision: str) -> list[float]:
        """How many times as fast it made each kind in which it was seen."""
        gains = []
        for kind in self._kinds():
            found = [self._cost_of(plan) for plan in self._by_cost(kind) if plan.precision == precision]
            if found and min(found) > 0 and precision not in self._first_precisions(kind):
                gains.append(self._plain_cost_of(kind) / min(found))
        return gains

    def _is_changed(self, plan: Plan) -> bool:
        """Whether a plan has another precision than its kind is looked at with first."""
        return plan.precision not in self._first_precisions(self._kind_of(plan))

    def _first_precisions(self, kind: str) -> set[str]:
        """With which engines of a kind are looked at first."""
        return {one for engine in self._of_kind(kind) for one in self._space.precisions(engine)[:1]}

    def _asked(self, plan: Plan) -> bool:
        """Whether a plan is in the space: the defaults may not be."""
        engines = [one for one in self._space.engines if one.name == plan.engine]
        return plan.threads in self._space.question.threads and any(
            plan.precision in self._space.precisions(one) for one in engines
        )

    def _kind_of(self, plan: Plan) -> str:
        return KERNELS.get(plan.engine, plan.engine)

    def _with_threads(self, threads: int | None) -> list[Plan]:
        """What was seen with so many; None: all."""
        return [plan for plan in self._seen if threads is None or plan.threads == threads]

    def _plain_cost(self, engine: str, threads: int | None = None) -> float:
        """The least of an engine without precision or transformations changed."""
        first = {one.name: self._space.precisions(one)[:1] for one in self._space.engines}
        plans = [
            plan
            for plan in self._with_threads(threads)
            if plan.engine == engine and not plan.transformations and (plan.precision,) == first[engine]
        ]
        return min(map(self._cost_of, plans), default=float("inf"))

    def _plain_cost_of(self, kind: str, threads: int | None = None) -> float:
        """The same of all engines of a kind."""
        engines = [engine.name for engine in self._space.engines if _kind(engine) == kind]
        return min((self._plain_cost(engine, threads) for engine in engines), default=float("inf"))

    def _behind(self, kind: str, threads: int | None = None) -> float:
        """How many times the best of all, each without precision or transformations changed."""
        best = min((self._plain_cost_of(one, threads) for one in self._kinds()), default=float("inf"))
        return self._plain_cost_of(kind, threads) / best if best < float("inf") else float("inf")


def _kind(engine: Engine) -> str:
    return KERNELS.get(engine.name, engine.name)


def _with(plan: Plan, **changes: object) -> Plan:
    return Plan(**{**dict(plan), **changes})


def _beside(numbers: tuple[int, ...], one: int) -> tuple[int, ...]:
    """The next smaller and the next larger."""
    place = numbers.index(one)
    return numbers[max(0, place - 1) : place] + numbers[place + 1 : place + 2]
