"""Whether a plan that was not looked at may be the best, and if not, why, in words."""

from tfperf.engines.catalog import Engine, find_engine
from tfperf.engines.plan import Plan, Precision
from tfperf.search.kinds import IN_PYTHON, Kinds, kind_of
from tfperf.search.space import FIXED_BATCH, Space

__all__ = ["PARTS", "SIBLING", "Chances"]

CALLED_FROM_PYTHON = ("graph", "xla", "saved_model")
"""Engines whose every call goes through the Python of a tf.function."""

BEHIND = {"threads": 2.0, "batch": 3.0, "precision": 2.5}
"""Part of a plan -> how many times slower than the best a kind may be, both without any change but the threads, and
still be tried with other settings of it: no setting has made so much more of one kind than of another."""

GAIN = {"threads": 2.0, "batch": 3.0, "precision": 4.0, "transformations": 1.6}
"""Part of a plan -> how many times slower than the best a kind may be, both with all that was found, and still be tried
with other settings of it: more no setting has gained. The narrowest numbers have a quarter of float32's bytes, which
is what counts for a precision that nothing was seen in yet."""

PARTS = tuple(GAIN)
"""The settings of a plan, in the order in which they are changed."""

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

SIBLING = 1.5
"""An engine that was so many times slower than another of its kind has no chance against it with like settings; and a
kind so far behind the best of all is not worth a look at more of its engines."""


class Chances:
    """What the plans that were seen tell of those that were not."""

    def __init__(self, space: Space, kinds: Kinds) -> None:
        """Judge by what is known of the kinds, whenever it is asked."""
        self._space, self._kinds = space, kinds

    def by_changing(self, kind: str, part: str) -> bool:
        """Whether a kind is near enough to the best for its champion to pass it with another setting of one part."""
        champion = self._kinds.champion(kind)
        # With other threads another kind may have become faster before this one could
        threads = champion.threads if champion is not None and part == "threads" else None
        near = part == "precision" or self._kinds.behind_now(kind, threads) <= GAIN[part]
        return near and self._kinds.behind(kind, threads) <= BEHIND.get(part, float("inf"))

    def in_precision(self, engine: Engine, precision: Precision) -> bool:
        """Whether an engine may be the best in a precision."""
        enough = self._gain_needed(kind_of(engine.name)) <= self._gain_by(precision)
        return enough and self._may_run(engine, precision)

    def with_threads(self, plan: Plan, threads: int) -> bool:
        """Whether a plan may be better with another number of threads."""
        return not self._why_not_threads(plan, threads)

    def calls_too_slowly(self, engine: Engine) -> bool:
        """Whether the way it is called takes longer than the best plan in all, whatever it computes.

        The same kernels called by tf.function(net), and without Python, tell what a tf.function's Python takes.
        """
        if engine.name not in CALLED_FROM_PYTHON or not self._space.question.is_timed:
            return False
        costs = (self._kinds.cost_of(plan) for plan in self._space.defaults if plan.engine == "graph")
        by_function = min(costs, default=0.0)
        return float("inf") > by_function - self._kinds.plain_cost("frozen") > SIBLING * self._kinds.best_cost()

    def promise(self, kind: str) -> float:
        """How many times the best of all a kind would be, with the most that a precision may still gain it."""
        seen = {plan.precision for plan in self._kinds.seen if kind_of(plan.engine) == kind}
        left = {one for engine in self._kinds.engines(kind) for one in self._space.precisions(engine)} - seen
        return self._kinds.behind_now(kind) / max([1.0, *map(self._gain_by, left)])

    def why_not(self, plan: Plan, out_of_time: bool) -> str:
        """Why a plan was not looked at, in words."""
        kinds = self._kinds
        if why := self._space.hopeless(plan.precision):
            return why
        if out_of_time:
            return "the time was up"
        if self._fixes_batch_of(plan):
            return "the same with its batch size fixed was looked at, and that makes none slower"
        if plan.engine in IN_PYTHON:
            return f"{plan.engine} spends its time in Python, whatever its settings"
        kind = kind_of(plan.engine)
        champion = kinds.champion(kind)
        if champion is None:
            return f"no engine with the kernels of {kind} runs this net"
        changed = "precision" if plan.precision != champion.precision else "threads"
        if (behind := kinds.behind(kind)) > BEHIND[changed]:
            return f"the best with the kernels of {kind}, {champion}, takes {behind:.1f}x as long as the best of all"
        if self._space.question.is_timed and self._space.converts_to_float32(find_engine(plan.engine), plan.precision):
            return f"nothing here computes in {plan.precision}: each number would be converted to float32 and back"
        if self.calls_too_slowly(find_engine(plan.engine)):
            return "a call of a tf.function from Python takes longer than the best of all"
        if plan.engine != champion.engine and behind > SIBLING:
            return f"{champion} has the same kernels, and takes {behind:.1f}x as long as the best of all"
        if plan.threads and (why := self._why_not_threads(champion, plan.threads)):
            return why
        needed, gain = self._gain_needed(kind), self._gain_by(plan.precision)
        if plan.precision not in {champion.precision, *kinds.first_precisions(kind)} and needed > gain:
            return f"in {plan.precision} {kind} would have to be {needed:.1f}x as fast; it gains {gain:.1f}x at most"
        if (now := kinds.behind_now(kind)) > min(GAIN.values()):
            return f"{champion} has the same kernels, and takes {now:.1f}x as long as the best of all"
        if plan.engine != champion.engine:
            return f"{champion} has the same kernels and was faster, or these settings made it slower"
        return f"some of what sets it apart from {champion} was no gain by itself"

    def _why_not_threads(self, plan: Plan, threads: int) -> str:
        """Why a plan is not tried with another number of threads, from what that did to the probes; empty: it may be.

        A plan of their own kind may be in any case.
        """
        probes, kind = self._space.probes(), kind_of(plan.engine)
        costs = {one.threads: self._kinds.cost_of(one) for one in probes if kind_of(one.engine) != kind}
        before, after = costs.get(plan.threads, 0.0), costs.get(threads, 0.0)
        if not 0 < before < float("inf") or not 0 < after < float("inf"):
            return ""
        slowed, compiled = after / before, find_engine(plan.engine).compiled
        if slowed <= (1 / GAINED if compiled else SLOWED):
            return ""
        what = f"{threads} threads in place of {plan.threads} made {probes[0].engine} {slowed:.2f}x as slow"
        return f"{what}, and each plan of {plan.engine} is compiled" if compiled and slowed <= SLOWED else what

    def _fixes_batch_of(self, plan: Plan) -> bool:
        """Whether a plan takes any batch size, and the same with a fixed one was looked at in its place."""
        if plan.batch is not None or not self._space.fixes_batch(find_engine(plan.engine)):
            return False
        fixed = {"transformations": (*plan.transformations, *FIXED_BATCH), "batch": self._space.middle}
        return Plan(**{**dict(plan), **fixed}) in self._kinds.seen

    def _may_run(self, engine: Engine, precision: Precision) -> bool:
        """Whether an engine may do better in a precision: not if it converts, nor if what was looked at did not run."""
        if self._space.question.is_timed and self._space.converts_to_float32(engine, precision):
            return False
        alike = [one for one in self._kinds.seen if (one.engine, one.precision) == (engine.name, precision)]
        return not alike or min(map(self._kinds.cost_of, alike)) < float("inf")

    def _gain_needed(self, kind: str) -> float:
        """How many times as fast a kind must become to be the best, from what it is without any change."""
        best = self._kinds.best_cost()
        return self._kinds.plain_cost_of(kind) / best if 0 < best < float("inf") else 1.0

    def _gain_by(self, precision: str) -> float:
        """What a precision may gain: more than it, or its like, did where seen; what bytes may, if it was not."""
        alike = INTEGERS if precision in INTEGERS else (precision,)
        least = AT_LEAST if self._kinds.gains(precision) else GAIN["precision"]
        return max([least, *(MORE * gain for one in alike for gain in self._kinds.gains(one))])
