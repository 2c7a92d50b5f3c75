"""The cores that this process may use."""

import os
from pathlib import Path

__all__ = ["usable_cores"]

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores this process may use: those of its affinity mask, cut by its control group's quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = CPU_QUOTA.read_text(encoding="utf-8").split()  # "<microseconds or max> <period>"
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores
