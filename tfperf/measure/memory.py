"""The most memory a piece of work took."""

import resource
import sys
from pathlib import Path

import psutil
from pydantic import Field

from tfperf.measure.devices import peak_device_memory, reset_peak_device_memory
from tfperf.measure.value import Count, Value

__all__ = ["MemoryPeak", "PeakMemory"]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


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
            _CLEAR_REFS.write_text("5")  # 5: reset the peak, see proc_pid_clear_refs(5)
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
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024  # the kernel's kB are KiB


def _process_peak() -> int:
    """Most resident memory in the life of the process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
