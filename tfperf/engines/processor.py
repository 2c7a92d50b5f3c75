"""What this machine's processor can, as Linux tells it."""

import re
from pathlib import Path

__all__ = ["CPU_DESCRIPTION", "flags_of_cpu", "saturates_int8"]

CPU_DESCRIPTION = Path("/proc/cpuinfo")

SUMMING_IN_32_BITS = {"avx_vnni", "avx512_vnni"}
"""Instructions of x86-64 that multiply 8-bit integers and add up four products at a time, in 32 bits."""


def flags_of_cpu(description: Path = CPU_DESCRIPTION) -> frozenset[str]:
    """Linux's names of what an x86 processor has; none elsewhere."""
    found = re.search(
        r"^flags\s*:(.*)$", description.read_text(encoding="utf-8") if description.is_file() else "", re.MULTILINE
    )
    return frozenset(found[1].split()) if found else frozenset()


def saturates_int8(description: Path = CPU_DESCRIPTION) -> bool:
    """Whether sums of two products of 8-bit integers are cut off at 16 bits, as by VPMADDUBSW: x86-64 before VNNI.

    Kernels that use it anyway answer wrongly where weights and activations are large together. With weights of 7 bits
    no such sum is cut off: 2 * 255 * 64 < 2**15. Source: "Saturation (overflow) Issue Workaround", OpenVINO's
    documentation, and `reduce_range` of ONNX Runtime's quantization.
    """
    flags = flags_of_cpu(description)
    return "lm" in flags and not flags & SUMMING_IN_32_BITS
