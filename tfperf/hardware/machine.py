"""What was measured of this machine, kept under a name that changes when the machine or a version does."""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from pydantic import Field

from tfperf.caching import cache_folder
from tfperf.errors import CacheError, ResultFileError
from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.ceilings.measuring import OnStep, measure_ceilings
from tfperf.hardware.ladder import Ladder, measure_ladder
from tfperf.measure import Environment
from tfperf.measure.results import read_document, write_result
from tfperf.measure.value import Value

__all__ = [
    "Machine",
    "MachineCache",
    "ceilings_of_this_machine",
    "ladder_of_this_machine",
    "machine_cache",
    "machine_key",
]

FORMAT: Literal["tfperf hardware"] = "tfperf hardware"
VERSION: Literal[2] = 2
"""It rises with that of its parts."""

GPUS = Path("/proc/driver/nvidia/gpus")

WITHOUT_EFFECT = ("TF_CPP_", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Variables that begin so change no speed: the log's, and those that scikit-learn sets where it is loaded."""

Kind = TypeVar("Kind", bound=Value)


class Machine(Value):
    """What a machine can give, and how far its memory is. Immutable."""

    format: Literal["tfperf hardware"] = FORMAT
    version: Literal[2] = VERSION
    ceilings: Ceilings
    ladder: Ladder | None = Field(description="None: Numba, which compiles its loops, was missing")


def ceilings_of_this_machine(
    cache: Path | None = None, fresh: bool = False, quick: bool = False, on_step: OnStep = lambda _: None
) -> Ceilings:
    """Those that were kept from an earlier measurement on this machine with these versions; else measured now.

    Args:
        cache: folder in which they are kept; None: tfperf's own.
        fresh: measure them in any case.
        quick: fewer sizes and samples will do; thorough ones that are kept do as well.
        on_step: is told what is being measured.

    Raises:
        HardwareError: as `measure_ceilings`.
    """

    def measured(quick: bool) -> Ceilings:
        return measure_ceilings(quick=quick, on_step=on_step)

    return _of_this_machine("ceilings", Ceilings, measured, cache, fresh, quick)


def ladder_of_this_machine(
    cache: Path | None = None, fresh: bool = False, quick: bool = False, on_step: OnStep = lambda _: None
) -> Ladder:
    """The latency ladder, kept or measured as `ceilings_of_this_machine`.

    Raises:
        HardwareError: Numba is missing.
    """

    def measured(quick: bool) -> Ladder:
        return measure_ladder(quick, on_step)

    return _of_this_machine("ladder", Ladder, measured, cache, fresh, quick)


def _of_this_machine(
    name: str, kind: type[Kind], measured: Callable[[bool], Kind], folder: Path | None, fresh: bool, quick: bool
) -> Kind:
    thorough = machine_cache(folder, name, kind)
    if not quick:
        return thorough.get(lambda: measured(False), fresh)
    if not fresh and (found := thorough.read()) is not None:
        return found
    return machine_cache(folder, f"{name}-quick", kind).get(lambda: measured(True), fresh)


class MachineCache(NamedTuple, Generic[Kind]):
    """A file in which one kind of measurement of this machine is kept; None: there is no place for one."""

    path: Path | None
    kind: type[Kind]

    def read(self) -> Kind | None:
        """What is in it; None: nothing that this version can read."""
        if self.path is None:
            return None
        try:
            return read_document(self.path, self.kind)
        except ResultFileError:
            return None

    def get(self, measure: Callable[[], Kind], fresh: bool = False) -> Kind:
        """What is in it; else, or if it is to be fresh, what is measured now, which is kept where it can be."""
        if not fresh and (found := self.read()) is not None:
            return found
        measured = measure()
        if self.path is not None:
            with contextlib.suppress(ResultFileError):  # a home that is read-only loses no measurement
                write_result(self.path, measured)
        return measured


def machine_cache(folder: Path | None, name: str, kind: type[Kind]) -> MachineCache[Kind]:
    """Where such measurements of this machine are kept.

    Args:
        folder: None: tfperf's own cache; where there can be none, nothing is kept.
        name: of what is kept.
    """
    with contextlib.suppress(CacheError):
        return MachineCache((folder or cache_folder("hardware")) / f"{name}-{machine_key()}.json", kind)
    return MachineCache(None, kind)


def machine_key(environment: Environment | None = None, gpus: Path = GPUS) -> str:
    """32 characters that change with whatever may change a speed: processor, memory, system, versions, variables.

    The same before and after TensorFlow is loaded, which is what tells `Environment` of GPUs.

    Args:
        environment: None: this machine's.
    """
    seen = environment or Environment.here()
    facts = seen.model_dump(exclude={"accelerators", "git_revision", "memory_bytes", "variables"})
    facts["memory_gib"] = round(seen.memory_bytes / 2**30)  # a few pages less after an update are no other machine
    facts["variables"] = {name: value for name, value in seen.variables.items() if not name.startswith(WITHOUT_EFFECT)}
    facts["gpus"] = sorted(_model(place) for place in gpus.glob("*/information"))
    facts["numba"] = _version("numba")
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _model(information: Path) -> str:
    """The line of NVIDIA's driver that names the GPU."""
    with contextlib.suppress(OSError):
        return next(
            (line for line in information.read_text(encoding="utf-8").splitlines() if line.startswith("Model:")), ""
        )
    return ""


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
