"""How long kernels take on this machine by themselves: measured when they are first asked for, then kept."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import tensorflow as tf
from pydantic import Field

from tfperf.hardware.kernels.alone import Among, alone, can_be_alone
from tfperf.hardware.kernels.kernel_run import KernelRun, TensorOrigin
from tfperf.hardware.machine import machine_cache
from tfperf.measure.value import Name, Value

__all__ = ["KernelTable", "KernelTimes"]

FORMAT: Literal["tfperf kernels"] = "tfperf kernels"
VERSION: Literal[4] = 4

AGREEMENT = 0.1
"""Share by which two measurements of a kernel may differ, for the shorter one to be believed."""

MOST = 3
"""Measurements of a kernel, each in another pass over all that are wanted."""

SMALL = 0.01
"""Share of all that are wanted together, below which two measurements of a kernel are enough, whether or not they
agree."""


class KernelTable(Value):
    """What was measured of kernels on a machine."""

    format: Literal["tfperf kernels"] = FORMAT
    version: Literal[4] = VERSION
    threads: int = Field(ge=1)
    seconds: dict[Name, float] = Field(description="kernel -> inside of it")


class KernelTimes:
    """Seconds of kernels with some number of threads, by themselves."""

    def __init__(
        self,
        threads: int,
        cache: Path | None = None,
        measure: Callable[[KernelRun, Among], float] | None = None,
        tell: Callable[[str], None] | None = None,
        fresh: bool = False,
    ) -> None:
        """Read what is kept.

        Args:
            threads: that TensorFlow has in this process.
            cache: folder; None: tfperf's own.
            measure: of a kernel in its place; None: measured in TensorFlow, now.
            tell: is told what is being measured.
            fresh: measure again what is kept.
        """
        self.threads = threads
        self._measure = measure or alone
        self._tell = tell or (lambda _: None)
        self._cache = machine_cache(cache, f"kernels-{threads}", KernelTable)
        kept = None if fresh else self._cache.read()
        self._known: dict[str, float] = dict(kept.seconds) if kept else {}
        self._unsure: dict[str, float | None] = {}
        self._new = False
        self.until = math.inf
        """The time (`time.monotonic`) after which no kernel is measured any more."""

    def alone(self, operation: KernelRun, among: Among) -> float | None:
        """Seconds inside of a kernel by itself; None: it cannot be run so."""
        self.learn([(operation, among)])
        name = name_of(operation, among)
        return self._known.get(name) or self._unsure[name]

    def learn(self, wanted: Iterable[tuple[KernelRun, Among]], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Measure what is not known, in passes over all of it: a disturbance of some seconds falls on one pass only.

        Args:
            wanted: kernels, each with its place.
            meanwhile: is called after each pass; once, if there is nothing to measure.
        """
        left = {name_of(*one): one for one in wanted}
        left = {name: one for name, one in left.items() if name not in self._known and name not in self._unsure}
        seen: dict[str, list[float]] = {name: [] for name in left}
        for turn in range(MOST):
            if turn > 1:
                least = SMALL * sum(times[0] for times in seen.values() if times)
                self._unsure |= {name: seen[name][0] for name in left if seen[name][0] < least}
                left = {name: one for name, one in left.items() if seen[name][0] >= least}
            if turn and left:
                self._tell(f"measuring kernels again of which no two measurements agree: {len(left)}")
            for name in [*left]:
                if time.monotonic() > self.until:
                    break
                if not turn:
                    self._tell(f"measuring {name.rpartition(' ')[0]}")
                if (seconds := self._once(*left[name])) is None:
                    self._unsure[name] = None
                    del left[name]
                    continue
                seen[name] = sorted([*seen[name], seconds])
                if turn and seen[name][1] <= seen[name][0] * (1 + AGREEMENT):
                    self._known[name] = seen[name][0]
                    self._new = True
                    del left[name]
            meanwhile()
            if not left or time.monotonic() > self.until:
                break
        self._unsure |= {name: seen[name][0] if seen[name] else None for name in left}

    def keep(self) -> None:
        """Write what is new to the file, where that can be written."""
        if self._new:
            self._cache.get(lambda: KernelTable(threads=self.threads, seconds=self._known), fresh=True)
            self._new = False

    @property
    def known(self) -> Mapping[str, float]:
        """What two measurements agree on."""
        return self._known

    @property
    def unsure(self) -> int:
        """How many were measured of which no two measurements agree: they are told, and not kept."""
        return sum(one is not None for one in self._unsure.values())

    def _once(self, operation: KernelRun, among: Among) -> float | None:
        """One measurement; None: it cannot be made."""
        if not can_be_alone(operation):
            return None
        try:
            return self._measure(operation, among)
        except (tf.errors.OpError, TypeError, ValueError):
            return None


def name_of(operation: KernelRun, among: Among) -> str:
    """What decides how long a kernel takes: its attributes, types, shapes, and where they are; in words, and a hash."""
    taken = [f"{_words(one.spec)}{'' if one.origin is TensorOrigin.GIVEN else '*'}" for one in operation.taken]
    whole = hashlib.sha256()
    for key in sorted(set(operation.attributes) - {"_class"} - ({"f"} if operation.compiled else set())):
        whole.update(key.encode() + operation.attributes[key].SerializeToString(deterministic=True))
    if operation.compiled:  # by what the function does: its name and its arguments' differ from layer to layer
        function = operation.compiled.definition(operation.attributes["f"].func.name)
        places = {argument.name: str(place) for place, argument in enumerate(function.signature.input_arg)}
        for node in function.node_def:
            whole.update(" ".join([node.op, *(places.get(name, name) for name in node.input)]).encode())
            for key in sorted(node.attr):
                whole.update(key.encode() + node.attr[key].SerializeToString(deterministic=True))
    for one in operation.taken:
        whole.update(f"{_words(one.spec)} {one.origin}".encode())
        if one.origin is TensorOrigin.CONSTANT:
            whole.update(one.source.attr["value"].tensor.SerializeToString(deterministic=True))
        if one.origin is TensorOrigin.VARIABLE:
            whole.update(one.source.attr["shape"].SerializeToString(deterministic=True))
    words = f"{operation.kernel.lstrip('_')} {' '.join(taken)}"
    place = f"beside {among.beside >> 10} KiB{' first' if among.first else ''}"
    return f"{words[:150]} {place} {whole.hexdigest()[:12]}"


def _words(spec: tf.TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.shape.as_list())) or 'scalar'}:{spec.dtype.name}"
