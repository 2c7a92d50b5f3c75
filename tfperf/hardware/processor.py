"""The processor: its caches, as Linux tells of them, and which unit multiplies matrices of a number format."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from tfperf.measure import Environment
from tfperf.measure.value import Value

__all__ = ["CPU_UNITS", "TENSOR_CORES", "Cache", "MatrixUnit", "data_caches", "matrix_unit"]

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Cache(Value):
    """A cache for data."""

    level: int = Field(ge=1, description="1 is nearest to the core")
    size: int = Field(gt=0, description="bytes")
    line: int = Field(gt=0, description="bytes that come and go together")
    shared_by: int = Field(gt=0, description="logical cores")

    @property
    def name(self) -> str:
        """The short name: "L2"."""
        return f"L{self.level}"


def data_caches(folder: Path = CACHES) -> tuple[Cache, ...]:
    """The first core's caches, the nearest first; empty where the system does not tell, as in some containers."""
    found = []
    for place in sorted(folder.glob("index*")):
        try:
            told = {
                name: (place / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            }
            line = int((place / "coherency_line_size").read_text(encoding="utf-8"))
            if told["type"] != "Instruction":
                size = _bytes(told["size"])
                shared = _count(told["shared_cpu_list"])
                found.append(Cache(level=int(told["level"]), size=size, line=line, shared_by=shared))
        except (OSError, ValueError):
            continue
    return tuple(sorted(found, key=lambda cache: cache.level))


def _bytes(text: str) -> int:
    """The bytes that "48K" means."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def _count(text: str) -> int:
    """How many numbers "0-3,8-11" lists."""
    ranges = [part.split("-") for part in text.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


class MatrixUnit(NamedTuple):
    """A unit of a processor that multiplies numbers of one format."""

    name: str
    """The name: "AVX-512 BF16", "tensor cores"."""
    times_float32: float | None
    """Its multiply-adds a cycle, by those of float32's widest unit where both begin as many instructions a cycle; None:
    it differs from model to model, as on GPUs."""


CPU_UNITS: Mapping[str, Mapping[str, MatrixUnit]] = {
    "float32": {
        "avx512f": MatrixUnit("AVX-512", 1),
        "avx2": MatrixUnit("AVX2", 1),
        "sve": MatrixUnit("SVE", 1),
        "asimd": MatrixUnit("NEON", 1),
    },
    "bfloat16": {
        "amx_bf16": MatrixUnit("AMX", 16),
        "avx512_bf16": MatrixUnit("AVX-512 BF16", 2),
        "bf16": MatrixUnit("BFMMLA", 4),
    },
    "float16": {
        "amx_fp16": MatrixUnit("AMX", 16),
        "avx512_fp16": MatrixUnit("AVX-512 FP16", 2),
        "asimdhp": MatrixUnit("NEON FP16", 2),
    },
    "int8": {
        "amx_int8": MatrixUnit("AMX", 32),
        "avx512_vnni": MatrixUnit("AVX-512 VNNI", 4),
        "avx_vnni": MatrixUnit("AVX-VNNI", 4),
        "i8mm": MatrixUnit("SMMLA", 8),
    },
}
"""Number format -> feature of a CPU, as Linux names it -> the unit; the fastest first."""

TENSOR_CORES: Mapping[str, tuple[int, int]] = {
    "float16": (7, 0),
    "int8": (7, 2),
    "bfloat16": (8, 0),
    "TF32": (8, 0),
}
"""Number format -> the compute capability from which on NVIDIA's GPUs have tensor cores for it."""


def matrix_unit(
    number_format: str, *, environment: Environment | None = None, compute_capability: tuple[int, int] | None = None
) -> MatrixUnit | None:
    """Find the fastest unit that multiplies a number format: of the first GPU, or of the CPU where there is none.

    Args:
        number_format: "float32", "TF32", "bfloat16", "float16" or "int8".
        environment: the machine whose CPU is asked for; None: this machine, with its GPU.
        compute_capability: of the GPU that is asked for, (8, 0); None: as `environment` says.

    Returns:
        None where no unit multiplies it: kernels then convert to a wider format and back.

    Raises:
        ValueError: the format is none of those.
    """
    formats = [*CPU_UNITS, "TF32"]
    if number_format not in formats:
        raise ValueError(f"expected a number format of {', '.join(formats)}. Received: {number_format}")
    if environment is None and compute_capability is None:
        compute_capability = _compute_capability()
    if compute_capability is not None:
        if number_format == "float32":
            return MatrixUnit("CUDA cores", 1)
        needed = TENSOR_CORES[number_format]
        return MatrixUnit("tensor cores", None) if compute_capability >= needed else None
    features = (environment or Environment.here()).cpu_features
    units = CPU_UNITS.get(number_format, {})
    return next((unit for feature, unit in units.items() if feature in features), None)


def _compute_capability() -> tuple[int, int] | None:
    """The compute capability of the first GPU; None where there is no GPU of NVIDIA's."""
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU")[:1]:
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability")
        return None if capability is None else (int(capability[0]), int(capability[1]))
    return None
