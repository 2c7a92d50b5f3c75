"""The plans that a question admits for a net."""

import itertools
from collections.abc import Iterator, Sequence

from tfperf.engines.catalog import DEFAULTS, Engine, find_engine, missing
from tfperf.engines.plan import TRANSFORMATIONS, Plan, Precision, Transformation
from tfperf.search.question import Question
from tfperf.search.strategy import HOPELESS

__all__ = ["FIXED_BATCH", "Space", "with_parts"]

FIXED_BATCH: tuple[Transformation, ...] = ("fixed_batch",)
"""Without it some converters refuse nets that others take, as LiteRT's those with loops over time."""

ROUNDING: dict[Precision, float] = {"bfloat16": 2**-9, "float16": 2**-12, "int8": 2**-9, "int8_static": 2**-9}
"""Largest relative error of rounding a number near 1, or a weight near the largest."""


class Space:
    """Plans by their parts, so that a search can go from one to its neighbours."""

    def __init__(
        self,
        question: Question,
        applicable: Sequence[Transformation],
        *,
        computes_float16: bool = True,
        defaults: Sequence[str] | None = None,
    ) -> None:
        """Look at the question.

        Args:
            applicable: transformations that would change something in this net.
            computes_float16: whether the machine does.
            defaults: engines that users have in any case; None: those of the catalog.

        Raises:
            EngineError: there is no such engine.
        """
        self.question = question
        self.engines = tuple(find_engine(name) for name in question.engines)
        self._computes_float16 = computes_float16
        self._defaults = [engine.name for engine in DEFAULTS] if defaults is None else defaults
        self._applicable = [one for one in TRANSFORMATIONS if one in applicable and one in question.transformations]

    @property
    def defaults(self) -> tuple[Plan, ...]:
        """What users have, with the threads that it takes by itself; whether or not its engine is among those asked."""
        return tuple(Plan(engine=name) for name in self._defaults)

    def probes(self) -> tuple[Plan, ...]:
        """One engine with each number of threads, for how many suit this net: the first installed of the light ones."""
        numbers = self.question.threads
        light = [one for one in self.engines if one.probe_place is not None]
        light.sort(key=lambda one: one.probe_place or 0)
        usable = [one for one in light if self.precisions(one) and missing(one) is None]
        return tuple(self.first(usable[0], one) for one in numbers) if usable and len(numbers) > 1 else ()

    def first(self, engine: Engine, threads: int, *, otherwise: bool = False) -> Plan:
        """The plan with which an engine is looked at first: its first precision, and no change but a fixed batch.

        Args:
            otherwise: with any batch size in place of a fixed one, or the other way round: some run only so.
        """
        fixed = self.fixes_batch(engine) != otherwise
        return Plan(
            engine=engine.name,
            precision=self.precisions(engine)[0],
            threads=threads,
            batch=self.middle if fixed or engine.fixes_batch() else None,
            transformations=FIXED_BATCH if fixed else (),
        )

    def fixes_batch(self, engine: Engine) -> bool:
        """Whether an engine is looked at with the batch size fixed alone, where it runs so.

        Where only one is asked for: who compiles it knows more, and no plan was slower for it.
        """
        return len(self.question.batches) == 1 and FIXED_BATCH in self.transformations(engine)

    @property
    def middle(self) -> int:
        """The one in the middle of the batch sizes that are asked for."""
        return self.question.batches[len(self.question.batches) // 2]

    def precisions(self, engine: Engine) -> tuple[Precision, ...]:
        """The precisions of an engine, without those whose rounding alone is more than the tolerance."""
        asked = [one for one in engine.precisions if one in self.question.precisions]
        return tuple(one for one in asked if self.hopeless(one) is None)

    def hopeless(self, precision: Precision) -> str | None:
        """Why no plan in this precision can answer within the tolerance; None: it may."""
        rounding = ROUNDING.get(precision, 0.0)
        if self.question.accuracy_drop is not None or rounding <= HOPELESS.value * self.question.tolerance:
            return None
        return f"{precision} rounds by {rounding:.1g}, far more than the tolerance of {self.question.tolerance:.1g}"

    def converts_to_float32(self, engine: Engine, precision: Precision) -> bool:
        """Whether TensorFlow's kernels would only be slowed down: they convert each number to float32 and back."""
        return precision == "float16" and engine.computes_in_precision and not self._computes_float16

    def with_engine(self, plan: Plan, engine: Engine, transformations: Sequence[Transformation], batch: int) -> Plan:
        """A plan with another engine, or other transformations.

        Args:
            batch: for which it is made, where it has to be for one and the plan is not.
        """
        fixed = (plan.batch or batch) if engine.fixes_batch(transformations) else None
        return with_parts(plan, engine=engine.name, transformations=tuple(transformations), batch=fixed)

    def batch_alone(self, plan: Plan) -> Plan | None:
        """The same plan made for the one batch size that is asked for; None: it is already, or cannot be."""
        if plan.batch is not None or not self.fixes_batch(find_engine(plan.engine)):
            return None
        return with_parts(plan, transformations=(*plan.transformations, *FIXED_BATCH), batch=self.middle)

    def transformations(self, engine: Engine) -> tuple[tuple[Transformation, ...], ...]:
        """Sets of transformations that the engine takes and that change something; the empty set first."""
        known = [one for one in self._applicable if one in engine.transformations]
        return tuple(
            itertools.chain.from_iterable(itertools.combinations(known, size) for size in range(len(known) + 1))
        )

    def plans(self) -> Iterator[Plan]:
        """All of them, each engine's together."""
        for engine in self.engines:
            for precision in engine.precisions:
                if precision in self.question.precisions:
                    for threads, changes in itertools.product(self.question.threads, self.transformations(engine)):
                        for batch in self.question.batches if engine.fixes_batch(changes) else (None,):
                            yield Plan(
                                engine=engine.name,
                                precision=precision,
                                threads=threads,
                                batch=batch,
                                transformations=changes,
                            )


def with_parts(plan: Plan, **changes: object) -> Plan:
    """A plan with some of its parts changed, and checked again."""
    return Plan(**{**dict(plan), **changes})
