"""What this machine's processor can, as Linux tells it."""

import re
from pathlib import Path

__all__ = ["CPU_DESCRIPTION", "flags_of_cpu", "level_of_cpu"]

CPU_DESCRIPTION = Path("/proc/cpuinfo")

LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64", set[str]()),
)
"""Compilers' names of the levels of x86-64, best first -> what Linux calls that which each has more than the next."""


def flags_of_cpu(description: Path = CPU_DESCRIPTION) -> frozenset[str]:
    """Linux's names of what an x86 processor has; none elsewhere."""
    found = re.search(
        r"^flags\s*:(.*)$", description.read_text(encoding="utf-8") if description.is_file() else "", re.MULTILINE
    )
    return frozenset(found[1].split()) if found else frozenset()


def level_of_cpu(description: Path = CPU_DESCRIPTION) -> str | None:
    """The level of x86-64 that this machine's processor has, as compilers call it; None: it is another processor."""
    flags = flags_of_cpu(description)
    if "lm" not in flags:
        return None
    levels = [
        (name, set[str]().union(*(needs for _, needs in LEVELS[place:]))) for place, (name, _) in enumerate(LEVELS)
    ]
    return next(name for name, needs in levels if needs <= flags)
