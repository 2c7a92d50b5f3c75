"""What this machine's processor is and can, as Linux tells it: the one reader of its description."""

import functools
from pathlib import Path

__all__ = [
    "CPU_DESCRIPTION",
    "described",
    "flags_of_cpu",
    "has_amx",
    "level_of_cpu",
    "multiplies_pairs",
    "saturates_int8",
]

CPU_DESCRIPTION = Path("/proc/cpuinfo")

LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64", set[str]()),
)
"""Compilers' names of the levels of x86-64, best first -> what Linux calls that which each has more than the next."""


SUMMING_IN_32_BITS = {"avx_vnni", "avx512_vnni"}
"""Instructions of x86-64 that multiply 8-bit integers and add up four products at a time, in 32 bits."""


def described(heading: str, description: Path = CPU_DESCRIPTION) -> str:
    """What Linux says of the first processor under a heading, as "model name"; empty where it says nothing."""
    try:
        lines = description.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = (line.partition(":") for line in lines)
    return next((what.strip() for name, _, what in said if name.strip() == heading), "")


def flags_of_cpu(description: Path = CPU_DESCRIPTION) -> frozenset[str]:
    """Linux's names of what the processor has: "avx2", "sve"."""
    return frozenset(described("flags", description).split() or described("Features", description).split())


@functools.cache
def has_amx() -> bool:
    """Whether the processor multiplies matrices in bfloat16 by AMX, and rounds to bfloat16 itself."""
    return flags_of_cpu() >= {"amx_tile", "amx_bf16", "avx512_bf16"}


def multiplies_pairs() -> bool:
    """Whether the processor's fastest products in bfloat16 are of pairs of numbers, by AVX512-BF16: it has no AMX."""
    return "avx512_bf16" in flags_of_cpu() and not has_amx()


def level_of_cpu(description: Path = CPU_DESCRIPTION) -> str | None:
    """The level of x86-64 that this machine's processor has, as compilers call it; None: it is another processor."""
    flags = flags_of_cpu(description)
    if "lm" not in flags:
        return None
    levels = [
        (name, set[str]().union(*(needs for _, needs in LEVELS[place:]))) for place, (name, _) in enumerate(LEVELS)
    ]
    return next(name for name, needs in levels if needs <= flags)


def saturates_int8(description: Path = CPU_DESCRIPTION) -> bool:
    """Whether sums of two products of 8-bit integers are cut off at 16 bits, as by VPMADDUBSW: x86-64 before VNNI.

    Kernels that use it anyway answer wrongly where weights and activations are large together. With weights of 7 bits
    no such sum is cut off: 2 * 255 * 64 < 2**15. Source: "Saturation (overflow) Issue Workaround", OpenVINO's
    documentation, and `reduce_range` of ONNX Runtime's quantization.
    """
    flags = flags_of_cpu(description)
    return "lm" in flags and not flags & SUMMING_IN_32_BITS
