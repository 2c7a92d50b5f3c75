"""The machine: cores, memory and disk that this process may use, and how quiet it is now."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tfperf.doctor.finding import Finding, State

if TYPE_CHECKING:
    from tfperf.measure import Conditions, Environment

__all__ = ["look", "memory_limit"]

WATCH_S = 1.0
"""Seconds that the machine is watched; TensorFlow needs longer to load meanwhile."""

LITTLE_MEMORY = 2 * 2**30
"""Bytes free below which it is said: importing TensorFlow alone takes 0.6 GiB."""

LITTLE_DISK = 2**30
"""Bytes free below which it is said: data sets and an exported net take tens to hundreds of MiB."""


_GROUPS, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def look(sleep: Callable[[float], None] = time.sleep) -> list[Finding]:
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

    from tfperf.measure.words import format_bytes

    memory, limit = psutil.virtual_memory(), memory_limit()
    free = int(memory.available)
    words = f"{format_bytes(free)} of {format_bytes(memory.total)} available"
    if limit is not None and limit[0] < memory.total:
        most, used = limit
        free = min(free, max(0, most - used))
        words += f"; this control group may use {format_bytes(most)} and uses {format_bytes(used)}"
    if free < LITTLE_MEMORY:
        return Finding("memory", State.NOTE, f"{words}: little for TensorFlow; end other programs")
    return Finding("memory", State.OK, words)


def memory_limit(groups: Path = _GROUPS, mount: Path = _MOUNT) -> tuple[int, int] | None:
    """The narrowest limit that a control group puts on this process's memory, and how much of it is in use.

    Both in bytes; None where there is no limit. Of version 2 and version 1 (cgroups(7)), with the groups
    above, up to the root that can be seen: in a container that is the container's own group.
    """
    limits = []
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, most, used = mount, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, most, used = mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            try:  # "max" is no number; a folder of the host may not exist in a container
                limit, in_use = (int((folder / file).read_text(encoding="utf-8")) for file in (most, used))
                limits.append((limit, in_use - _reclaimable(folder)))
            except (OSError, ValueError):
                continue
    return min(limits, key=lambda limit: limit[0] - limit[1], default=None)


def _reclaimable(group: Path) -> int:
    """Bytes that count as used by a control group, but hold files that the kernel drops where memory is needed."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


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
