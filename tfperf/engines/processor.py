"""What engines must know of this machine's processor."""

from pathlib import Path

from tfperf.native.processor import CPU_DESCRIPTION, flags_of_cpu

__all__ = ["saturates_int8"]

SUMMING_IN_32_BITS = {"avx_vnni", "avx512_vnni"}
"""Instructions of x86-64 that multiply 8-bit integers and add up four products at a time, in 32 bits."""


def saturates_int8(description: Path = CPU_DESCRIPTION) -> bool:
    """Whether sums of two products of 8-bit integers are cut off at 16 bits, as by VPMADDUBSW: x86-64 before VNNI.

    Kernels that use it anyway answer wrongly where weights and activations are large together. With weights of 7 bits
    no such sum is cut off: 2 * 255 * 64 < 2**15. Source: "Saturation (overflow) Issue Workaround", OpenVINO's
    documentation, and `reduce_range` of ONNX Runtime's quantization.
    """
    flags = flags_of_cpu(description)
    return "lm" in flags and not flags & SUMMING_IN_32_BITS
