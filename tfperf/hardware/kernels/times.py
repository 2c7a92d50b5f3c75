"""How long kernels take on this machine by themselves: measured when they are first asked for, then kept."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import tensorflow as tf
from pydantic import Field

from tfperf.hardware.keeping import keeping
from tfperf.hardware.kernels.alone import alone, can_be_alone
from tfperf.hardware.kernels.ran import Origin, Ran
from tfperf.measure.value import Name, Value

__all__ = ["KernelTable", "KernelTimes"]

FORMAT: Literal["tfperf kernels"] = "tfperf kernels"
VERSION: Literal[2] = 2

AGREEMENT = 0.1
"""Share by which two measurements of a kernel may differ, for the shorter one to be believed."""

MOST = 4
"""Measurements of a kernel."""


class KernelTable(Value):
    """What was measured of kernels on a machine."""

    format: Literal["tfperf kernels"] = FORMAT
    version: Literal[2] = VERSION
    threads: int = Field(ge=1)
    seconds: dict[Name, float] = Field(description="kernel -> inside of it")


class KernelTimes:
    """Seconds of kernels with some number of threads, by themselves."""

    def __init__(
        self,
        threads: int,
        cache: Path | None = None,
        measure: Callable[[Ran, int], float] | None = None,
        tell: Callable[[str], None] | None = None,
        fresh: bool = False,
    ) -> None:
        """Read what is kept.

        Args:
            threads: that TensorFlow has in this process.
            cache: folder; None: tfperf's own.
            measure: of a kernel, beside so many bytes; None: measured in TensorFlow, now.
            tell: is told what is being measured.
            fresh: measure again what is kept.
        """
        self.threads = threads
        self._measure = measure or alone
        self._tell = tell or (lambda _: None)
        self._keeping = keeping(cache, f"kernels-{threads}", KernelTable)
        kept = None if fresh else self._keeping.kept()
        self._known: dict[str, float] = dict(kept.seconds) if kept else {}
        self._unsure: dict[str, float | None] = {}
        self._new = False

    def alone(self, operation: Ran, beside: int) -> float | None:
        """Seconds inside of a kernel by itself; None: it cannot be run so.

        Args:
            beside: bytes that are read between two of its runs.
        """
        name = name_of(operation, beside)
        if name in self._known:
            return self._known[name]
        if name not in self._unsure:
            self._tell(f"measuring {name.rpartition(' ')[0]}")
            self._learn(name, operation, beside)
        return self._known.get(name) or self._unsure[name]

    def keep(self) -> None:
        """Write what is new to the file, where that can be written."""
        if self._new:
            self._keeping.get(lambda: KernelTable(threads=self.threads, seconds=self._known), fresh=True)
            self._new = False

    @property
    def known(self) -> Mapping[str, float]:
        """What two measurements agree on."""
        return self._known

    @property
    def unsure(self) -> int:
        """How many were measured of which no two measurements agree: they are told, and not kept."""
        return sum(one is not None for one in self._unsure.values())

    def _learn(self, name: str, operation: Ran, beside: int) -> None:
        self._unsure[name] = None
        if not can_be_alone(operation):
            return
        seen: list[float] = []
        try:
            for _ in range(MOST):
                seen = sorted([*seen, self._measure(operation, beside)])
                if len(seen) > 1 and seen[1] <= seen[0] * (1 + AGREEMENT):
                    self._known[name] = seen[0]
                    self._new = True
                    del self._unsure[name]
                    return
        except (tf.errors.OpError, TypeError, ValueError):
            return
        self._unsure[name] = seen[0]


def name_of(operation: Ran, beside: int) -> str:
    """What decides how long a kernel takes: its attributes, types, shapes, and where they are; in words, and a hash."""
    taken = [f"{_words(one.spec)}{'' if one.origin is Origin.GIVEN else '*'}" for one in operation.taken]
    whole = hashlib.sha256()
    for key in sorted(set(operation.attributes) - {"_class"}):
        whole.update(key.encode() + operation.attributes[key].SerializeToString(deterministic=True))
    for one in operation.taken:
        whole.update(f"{_words(one.spec)} {one.origin}".encode())
        if one.origin is Origin.CONSTANT:
            whole.update(one.source.attr["value"].tensor.SerializeToString(deterministic=True))
        if one.origin is Origin.VARIABLE:
            whole.update(one.source.attr["shape"].SerializeToString(deterministic=True))
    words = f"{operation.kernel.lstrip('_')} {' '.join(taken)}"
    return f"{words[:150]} beside {beside >> 10} KiB {whole.hexdigest()[:12]}"


def _words(spec: tf.TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.shape.as_list())) or 'scalar'}:{spec.dtype.name}"
