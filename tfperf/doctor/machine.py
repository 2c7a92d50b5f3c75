"""The machine: the CPU's instructions, cores, memory and disk that this process may use, and how quiet it is now."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfperf.doctor.findings import Finding, State

if TYPE_CHECKING:
    from tfperf.measure import Conditions, Environment

__all__ = ["examine_cpu", "examine_machine"]

_MEASURE = "what it buys, measure: tfperf run mnist_mixed_mirrored"
_WITH = f"instructions for it; {_MEASURE}"
_WITHOUT = f"the CPU has no instructions for it, so kernels convert to float32 and back; {_MEASURE}"

FORMATS: Mapping[str, tuple[str, str]] = {
    "float32": ("vector instructions", "no vector instructions known here"),
    "bfloat16": (_WITH, _WITHOUT),
    "float16": (_WITH, _WITHOUT),
    "int8": (
        "dot products of 8-bit integers",
        "the CPU has no dot products of 8-bit integers, so a quantised net may be no faster",
    ),
}
"""Number format of tfperf.measure.environment.ARITHMETIC -> what it means that the CPU has instructions for it; has
none."""

WATCH_S = 1.0
"""Seconds that the machine is watched; TensorFlow needs longer to load meanwhile."""

LITTLE_MEMORY = 2 * 2**30
"""Bytes free below which it is said: importing TensorFlow alone takes 0.6 GiB."""

LITTLE_DISK = 2**30
"""Bytes free below which it is said: data sets and an exported net take tens to hundreds of MiB."""


def examine_cpu(environment: "Environment | None" = None) -> list[Finding]:
    """The CPU's name, and one finding for each number format.

    Args:
        environment: what the machine is; this one where None is given.
    """
    if environment is None:
        from tfperf.measure import Environment

        environment = Environment.here()
    where = ", in a virtual machine" if environment.hypervisor else ""
    cpu = Finding("CPU", State.OK, f"{environment.cpu}{where}")
    if not environment.cpu_features:
        return [cpu, Finding("CPU instructions", State.NOTE, "the system does not tell which ones the CPU has")]
    return [cpu, *(_number_format(name, environment) for name in FORMATS)]


def _number_format(name: str, environment: "Environment") -> Finding:
    from tfperf.measure.environment import ARITHMETIC

    with_them, without = FORMATS[name]
    if has := environment.instructions_for(name):
        return Finding(f"CPU {name}", State.OK, f"{', '.join(has)}: {with_them}")
    return Finding(f"CPU {name}", State.NOTE, f"none of {', '.join(ARITHMETIC[name])}: {without}")


def examine_machine(sleep: Callable[[float], None] = time.sleep) -> list[Finding]:
    """Cores, memory, load, steal, frequency governor, disk and cache."""
    from tfperf.caching import cache_place
    from tfperf.errors import CacheError
    from tfperf.measure import Environment
    from tfperf.measure.environment import Watch

    watch = Watch()
    sleep(WATCH_S)
    environment, conditions = Environment.here(), watch.conditions()
    try:
        place = cache_place()
        cached = [_disk("disk for data sets", place), _cache(place)]
    except CacheError as error:
        cached = [Finding("cache", State.NOTE, str(error))]
    return [
        _cores(environment),
        _memory(),
        _load(conditions, environment.usable_cores),
        _steal(conditions),
        _governor(environment),
        _disk("disk for results", Path("results").absolute()),
        *cached,
    ]


def _cores(environment: "Environment") -> Finding:
    usable, all_of_them = environment.usable_cores, environment.logical_cores
    if usable < all_of_them:
        words = f"{usable} of {all_of_them} may be used; an affinity mask or a control group keeps the others away"
        return Finding("cores", State.NOTE, words)
    return Finding("cores", State.OK, f"all {all_of_them} may be used")


def _memory() -> Finding:
    import psutil

    from tfperf.measure.memory import available_memory, memory_limits
    from tfperf.measure.words import format_bytes

    memory, free = psutil.virtual_memory(), available_memory()
    words = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} available"
    for limit in memory_limits()[:1]:
        if limit.most < memory.total:
            words += f"; this control group may use {format_bytes(limit.most)} and uses {format_bytes(limit.used)}"
    if free < LITTLE_MEMORY:
        return Finding("memory", State.NOTE, f"{words}: little for TensorFlow; end other programs")
    return Finding("memory", State.OK, words)


def _load(conditions: "Conditions", cores: int) -> Finding:
    from tfperf.measure.doubts import MOST_BUSY_ELSEWHERE

    words = f"{conditions.load_before:.2f} on {cores} cores, average of the last minute"
    if conditions.load_before > MOST_BUSY_ELSEWHERE * cores:
        return Finding("load", State.NOTE, f"{words}: something else ran; measure when it has ended")
    return Finding("load", State.OK, words)


def _steal(conditions: "Conditions") -> Finding:
    from tfperf.measure.doubts import MOST_STEAL

    words = f"the hypervisor gave {conditions.steal_share:.1%} of the CPU time to others, in {conditions.seconds:.1f} s"
    if conditions.steal_share > MOST_STEAL:
        return Finding("steal", State.NOTE, f"{words}: trust ratios taken side by side, not times")
    return Finding("steal", State.OK, words)


def _governor(environment: "Environment") -> Finding:
    from tfperf.measure.doubts import SLOW_GOVERNORS

    governor = environment.frequency_governor
    if governor is None:
        return Finding("frequency governor", State.NOTE, "the system does not tell, as in most virtual machines")
    if governor in SLOW_GOVERNORS:
        words = f"{governor}: the clock rate depends on what ran before"
        return Finding("frequency governor", State.NOTE, words, "sudo cpupower frequency-set -g performance")
    return Finding("frequency governor", State.OK, governor)


def _disk(subject: str, folder: Path) -> Finding:
    from tfperf.measure.words import format_bytes

    nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))  # noqa: PTH110  # never raises
    free = shutil.disk_usage(nearest).free
    words = f"{format_bytes(free)} free in {folder}"
    if not os.access(nearest, os.W_OK):
        return Finding(subject, State.NOTE, f"{words}, but {nearest} may not be written")
    if free < LITTLE_DISK:
        return Finding(subject, State.NOTE, f"{words}: little")
    return Finding(subject, State.OK, words)


def _cache(place: Path) -> Finding:
    """How large tfperf's cache is, and whether others could change what is loaded from it."""
    from tfperf.caching import cache_bound, cache_bytes, cache_fault
    from tfperf.measure.words import format_bytes

    size, bound = cache_bytes(place), cache_bound()
    words = f"{format_bytes(size)} of at most {format_bytes(bound)} (TFPERF_CACHE_GIB) in {place}"
    try:
        fault = cache_fault(place)
    except FileNotFoundError:  # it is made when it is first needed
        fault = None
    except OSError as error:
        fault = f"{place} cannot be read: {error.strerror}"
    if fault:
        return Finding("cache", State.NOTE, fault)
    if size > bound:
        return Finding("cache", State.NOTE, f"{words}: what was used longest ago goes when the next net is converted")
    return Finding("cache", State.OK, words)
