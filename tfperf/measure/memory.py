"""The most memory a piece of work took."""

import resource
import sys
from pathlib import Path

import psutil
from pydantic import Field

from tfperf.measure.devices import peak_device_memory, reset_peak_device_memory
from tfperf.measure.value import Count, Value

__all__ = ["MemoryPeak", "PeakMemory", "available_memory", "usable_memory"]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_GROUP = Path("/sys/fs/cgroup")


class MemoryPeak(Value):
    """The most memory in use at once, in bytes."""

    resident: Count = Field(description="most resident memory of the process")
    resident_before: Count = Field(description="resident memory before the work began")
    device: Count | None = Field(description="most memory on any one GPU; None where there is no GPU")
    of_whole_process: bool = Field(description="the peak may date from before the work: the system could not reset it")


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def usable_memory() -> int:
    """Bytes that this process and others may use together: the machine's, cut by the control group's limit."""
    return min(int(psutil.virtual_memory().total), _group_bytes("memory.max"))


def available_memory() -> int:
    """Bytes that a new process can have now: what is free on the machine, and in the control group."""
    in_group = _group_bytes("memory.max") - _group_bytes("memory.current", otherwise=0)
    return max(0, min(int(psutil.virtual_memory().available), in_group))


def _group_bytes(name: str, otherwise: int = sys.maxsize) -> int:
    """A figure of this process's control group; another where there is none, or no limit."""
    try:
        return int((_GROUP / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # "max"
        return otherwise
