"""The most memory that a piece of work took, and how much a process may take."""

import contextlib
import resource
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import Field

from tfperf.measure.clock import loaded_tensorflow
from tfperf.measure.value import Count, Value

__all__ = [
    "MemoryLimit",
    "MemoryPeak",
    "PeakMemory",
    "available_memory",
    "memory_limits",
    "peak_device_memory",
    "reset_peak_device_memory",
    "usable_memory",
]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_GROUPS, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class MemoryPeak(Value):
    """The most memory in use at once, in bytes."""

    resident: Count = Field(description="most resident memory of the process")
    resident_before: Count = Field(description="resident memory before the work began")
    device: Count | None = Field(description="most memory on any one GPU; None where there is no GPU")
    of_whole_process: bool = Field(description="the peak may date from before the work: the system could not reset it")


class MemoryLimit(NamedTuple):
    """What a control group lets its processes use together, in bytes."""

    most: int
    used: int
    """Without files that the kernel drops where memory is needed."""

    @property
    def left(self) -> int:
        """What is left; under 0 where they use more."""
        return self.most - self.used


class PeakMemory:
    """Watches this process's peak resident memory, and its GPUs', from its creation on.

    On Linux the kernel's own high-water mark is set back to what is in use now, so nothing is
    sampled and nothing slows the work. Where that is refused the peak is that of the process's life.
    A second watch resets the first one's mark, so read the first before creating it.
    """

    def __init__(self) -> None:
        reset_peak_device_memory()
        try:
            _CLEAR_REFS.write_text("5", encoding="utf-8")  # 5: reset the peak, see proc_pid_clear_refs(5)
            self._was_reset = True
        except OSError:
            self._was_reset = False
        self._before = int(psutil.Process().memory_info().rss)

    def read(self) -> MemoryPeak:
        """The peak from the creation until now."""
        return MemoryPeak(
            # The kernel counts lazily, so its peak can lie a little below what is in use.
            resident=max(_high_water_mark() if self._was_reset else _process_peak(), self._before),
            resident_before=self._before,
            device=peak_device_memory(),
            of_whole_process=not self._was_reset,
        )


def _high_water_mark() -> int:
    """The kernel's high-water mark of resident memory, which can be reset, in bytes."""
    line = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024  # the kernel's kB are KiB


def _process_peak() -> int:
    """Most resident memory in the life of the process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_device_memory() -> None:
    """Let the peak memory of every GPU start from what is in use now."""
    if tensorflow := loaded_tensorflow():
        for device in tensorflow.config.list_logical_devices("GPU"):
            tensorflow.config.experimental.reset_memory_stats(device.name)


def peak_device_memory() -> int | None:
    """Most bytes in use on any one GPU since the last reset; None where there is no GPU."""
    tensorflow = loaded_tensorflow()
    if tensorflow is None:
        return None
    gpus = tensorflow.config.list_logical_devices("GPU")
    peaks = (tensorflow.config.experimental.get_memory_info(gpu.name)["peak"] for gpu in gpus)
    return max((int(peak) for peak in peaks), default=None)


def usable_memory() -> int:
    """Bytes that this process and others may use together: the machine's, cut by its control groups' limits."""
    return min([int(psutil.virtual_memory().total), *(limit.most for limit in memory_limits())])


def available_memory() -> int:
    """Bytes that a new process can have now: what is free on the machine, and in each of its control groups."""
    return max(0, min([int(psutil.virtual_memory().available), *(limit.left for limit in memory_limits())]))


def memory_limits(groups: Path = _GROUPS, mount: Path = _MOUNT) -> list[MemoryLimit]:
    """The limits that control groups put on this process's memory; the one that leaves least comes first.

    Of version 2 and version 1 (cgroups(7)), with the groups above, up to the root that can be seen: in a container
    that is the container's own group.
    """
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
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
            with contextlib.suppress(OSError, ValueError):  # "max"; a folder of the host that no container sees
                limit, in_use = (int((folder / file).read_text(encoding="utf-8")) for file in (most, used))
                limits.append(MemoryLimit(limit, in_use - _reclaimable(folder)))
    return sorted(limits, key=lambda limit: limit.left)


def _reclaimable(group: Path) -> int:
    """Bytes that count as used by a control group, but hold files that the kernel drops where memory is needed."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
