"""How long kernels of any size take on this machine, told from those that were measured, which are kept."""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from tfperf.hardware.keeping import keeping
from tfperf.hardware.kernels.kinds import Kind, Spot
from tfperf.measure.value import Name, Value

__all__ = ["KernelRates", "KernelTable"]

MOST_WORK = 2e9
"""Largest work that is measured, in floating-point operations or what counts as such; beyond, time grows with it."""

FORMAT: Literal["tfperf kernels"] = "tfperf kernels"
VERSION: Literal[1] = 1


class KernelTable(Value):
    """What was measured of kernels on a machine."""

    format: Literal["tfperf kernels"] = FORMAT
    version: Literal[1] = VERSION
    threads: int = Field(ge=1)
    seconds: dict[Name, float] = Field(description="kind and sizes -> seconds inside of a kernel")


class KernelRates:
    """Seconds of kernels with some number of threads: measured when they are first asked for, then kept in a file."""

    def __init__(
        self,
        threads: int,
        cache: Path | None = None,
        measure: Callable[[Kind, tuple[int, ...]], float] | None = None,
        tell: Callable[[str], None] | None = None,
        fresh: bool = False,
    ) -> None:
        """Read what is kept.

        Args:
            threads: that TensorFlow has in this process.
            cache: folder; None: tfperf's own.
            measure: seconds of a kind with sizes; None: measured in TensorFlow, now.
            tell: is told what is being measured.
            fresh: measure again what is kept.
        """
        from tfperf.hardware.kernels.bench import FAMILIES, kernel_seconds

        self.threads = threads
        self._families = FAMILIES
        self._measure = measure or kernel_seconds
        self._tell = tell or (lambda _: None)
        self._keeping = keeping(cache, f"kernels-{threads}", KernelTable)
        kept = None if fresh else self._keeping.kept()
        self._known: dict[str, float] = dict(kept.seconds) if kept else {}
        self._new = 0

    def seconds(self, spot: Spot) -> float:
        """How long a kernel takes.

        Between the sizes that are measured it is told on logarithmic scales; beyond the largest the time grows with
        the work, below the smallest it is the same.
        """
        family = self._families[spot.kind.family]
        sizes = [max(size, least) for size, least in zip(spot.sizes, family.least, strict=True)]
        corners = [_around(size, step) for size, step in zip(sizes, family.steps, strict=True)]
        most = corners[0][-1]
        while most > family.least[0] and family.work((most, *(ends[-1] for ends in corners[1:]))) > MOST_WORK:
            most = max(family.least[0], most // family.steps[0])
        beyond = max(1.0, sizes[0] / most)
        if most < corners[0][-1]:
            corners[0] = (most,)
        logs = 0.0
        for place in itertools.product(*corners):
            share = math.prod(_nearness(size, end, ends) for size, end, ends in zip(sizes, place, corners, strict=True))
            logs += share * math.log(self._at(spot.kind, place)) if share else 0.0
        return math.exp(logs) * beyond

    def start(self, kind: Kind) -> float:
        """Seconds of the smallest kernel of a kind, which are spent whatever it computes."""
        return self._at(kind, self._families[kind.family].least)

    def keep(self) -> None:
        """Write what is new to the file, where that can be written."""
        if self._new:
            self._keeping.get(lambda: KernelTable(threads=self.threads, seconds=self._known), fresh=True)
            self._new = 0

    @property
    def known(self) -> Mapping[str, float]:
        """What was measured so far: kind and sizes -> seconds."""
        return self._known

    def _at(self, kind: Kind, sizes: tuple[int, ...]) -> float:
        name = f"{kind} {'x'.join(map(str, sizes))}"[-200:]
        if name not in self._known:
            self._tell(f"measuring kernels: {name}")
            self._known[name] = max(self._measure(kind, sizes), 1e-9)
            self._new += 1
        return self._known[name]


def _around(size: float, step: int) -> tuple[int, ...]:
    """The powers of a step below and above a size; one, where it is as good as that."""
    power = math.log(size, step)
    low, high = math.floor(power + 1e-6), math.ceil(power - 1e-6)
    return (step**low,) if low >= high else (step**low, step**high)


def _nearness(size: float, end: int, ends: tuple[int, ...]) -> float:
    """From 0 to 1 on a logarithmic scale."""
    if len(ends) == 1:
        return 1.0
    share = math.log(size / ends[0]) / math.log(ends[1] / ends[0])
    share = min(1.0, max(0.0, share))
    return share if end == ends[1] else 1 - share
