"""On what a measurement was made: the machine, the software, and how quiet it was."""

import contextlib
import functools
import os
import platform
import re
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import Field

from tfperf.measure.clock import loaded_tensorflow
from tfperf.measure.value import Count, Name, Text, Value
from tfperf.measure.words import escape_unprintable
from tfperf.native.processor import CPU_DESCRIPTION, described, flags_of_cpu
from tfperf.processes import run
from tfperf.system import usable_cores

__all__ = ["Conditions", "Environment", "Watch", "accelerator_names", "machine_name"]

PACKAGES = (
    "tfperf",
    "tensorflow",
    "keras",
    "numpy",
    "scipy",
    "horovod",
    "onnxruntime",
    "openvino",
    "ai-edge-litert",
)
"""Packages whose versions decide what a figure means."""

VARIABLE_PREFIXES = (
    "CUDA_", "DNNL_", "HOROVOD_CACHE_", "HOROVOD_CYCLE_", "HOROVOD_FUSION_",
    "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONOPTIMIZE", "TCMALLOC_", "TF_AUTO", "TF_CPP_", "TF_CUDNN_",
    "TF_DETERMINISTIC_", "TF_DISABLE_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_", "TF_USE_", "TF_XLA_", "XLA_",
)  # fmt: skip
"""Environment variables that change how fast TensorFlow runs begin with one of these; no other is recorded."""

CPU_FEATURES = (
    "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimdhp", "bf16", "i8mm", "sve",
)  # fmt: skip
"""Instructions that decide how fast a number format is, as Linux names them; the last row is ARM's."""

ARITHMETIC: Mapping[str, tuple[str, ...]] = {
    "float32": ("avx2", "avx512f", "asimd", "sve"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8", "i8mm"),
}
"""Number format -> those of which any one computes in it; without, kernels of a half format convert to float32."""

ZEN: tuple[tuple[int, range, str], ...] = (
    (0x17, range(0x30), "zen1"), (0x17, range(0x50, 0x60), "zen1"), (0x17, range(0x30, 0x100), "zen2"),
    (0x19, range(0x10, 0x20), "zen4"), (0x19, range(0x60, 0xB0), "zen4"), (0x19, range(0x60), "zen3"),
    (0x1A, range(0x30), "zen5"), (0x1A, range(0x40, 0x50), "zen5"), (0x1A, range(0x60, 0x80), "zen5"),
)  # fmt: skip
"""Family, models and microarchitecture of AMD's processors, the first that fits; virtual machines hide their names and
some of their instructions. Source: bsp_init_amd in Linux's arch/x86/kernel/cpu/amd.c."""

_CPU_FOLDER = Path("/sys/devices/system/cpu")


class Environment(Value):
    """The machine and the software: what two measurements must share to be compared."""

    cpu: Text
    cpu_features: tuple[Text, ...] = Field(description="which of CPU_FEATURES it has")
    logical_cores: Count
    usable_cores: Count = Field(description="after the process's affinity mask and its control group's quota")
    memory_bytes: Count
    accelerators: tuple[Text, ...] = Field(description="by their makers' names; also empty before TensorFlow is loaded")
    frequency_governor: Text | None = Field(
        description="None where the system does not tell, as in most virtual machines"
    )
    hypervisor: bool
    system: Text
    python: Text
    packages: dict[Name, Text]
    variables: dict[Name, Text]
    git_revision: Text | None = Field(description="of the working folder; '+' at its end: with uncommitted changes")

    @classmethod
    def here(cls) -> "Environment":
        """This machine and this process, now."""
        return cls(
            cpu=_cpu_name(CPU_DESCRIPTION),
            cpu_features=_cpu_features(CPU_DESCRIPTION),
            logical_cores=psutil.cpu_count() or 1,
            usable_cores=usable_cores(),
            memory_bytes=int(psutil.virtual_memory().total),
            accelerators=accelerator_names(),
            frequency_governor=_read(_CPU_FOLDER / "cpu0/cpufreq/scaling_governor"),
            hypervisor="hypervisor" in flags_of_cpu(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            packages=_package_versions(),
            variables=_variables(),
            git_revision=_git_revision(Path.cwd()),
        )

    @property
    def computes_float16(self) -> bool:
        """Whether anything here computes in float16, rather than convert to float32 and back."""
        return bool(self.accelerators or self.instructions_for("float16"))

    def instructions_for(self, number_format: str) -> tuple[str, ...]:
        """What the CPU has of `ARITHMETIC` that computes in a number format.

        Raises:
            KeyError: there is no such format in it.
        """
        return tuple(one for one in ARITHMETIC[number_format] if one in self.cpu_features)

    def differences(self, other: "Environment") -> list[str]:
        """What differs from another environment, one phrase for each difference that can change a speed."""
        mine, theirs = self._flat(), other._flat()
        names = sorted(mine.keys() | theirs.keys())
        return [f"{n}: {mine.get(n)} and {theirs.get(n)}" for n in names if mine.get(n) != theirs.get(n)]

    def _flat(self) -> dict[str, object]:
        """One entry for each thing that can change a speed; a change of revision is what one compares."""
        fields = self.model_dump(exclude={"git_revision", "packages", "variables"})
        return {name.replace("_", " "): value for name, value in fields.items()} | self.packages | self.variables


class Conditions(Value):
    """How quiet the machine was while a measurement was made."""

    load_before: float = Field(ge=0, description="processes wanting a core, one-minute average before the start")
    steal_share: float = Field(ge=0, le=1, description="share of CPU time the hypervisor gave to others")
    busy_elsewhere_share: float = Field(ge=0, le=1, description="share of CPU time that other processes took")
    seconds: float = Field(ge=0, description="how long the measurement took, all in all")


class Watch:
    """Watches the conditions from its creation on."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._machine = psutil.cpu_times()
        self._own = _own_cpu_seconds()
        self._start = time.monotonic()

    def conditions(self) -> Conditions:
        """The conditions from the creation until now."""
        machine, own = psutil.cpu_times(), _own_cpu_seconds() - self._own
        passed = {field: max(0.0, getattr(machine, field) - getattr(self._machine, field)) for field in machine._fields}
        total = sum(passed.values()) - passed.get("guest", 0) - passed.get("guest_nice", 0)  # counted in user already
        steal = passed.get("steal", 0.0)
        idle = passed.get("idle", 0.0) + passed.get("iowait", 0.0)
        others = max(0.0, total - idle - steal - own)
        share = 1 / total if total > 0 else 0.0
        return Conditions(
            load_before=self._load,
            steal_share=min(1.0, steal * share),
            busy_elsewhere_share=min(1.0, others * share),
            seconds=time.monotonic() - self._start,
        )


def accelerator_names() -> tuple[str, ...]:
    """The GPUs and other accelerators that this process sees, by their makers' names; empty without TensorFlow."""
    tensorflow = loaded_tensorflow()
    if tensorflow is None:
        return ()
    devices = [device for device in tensorflow.config.list_physical_devices() if device.device_type != "CPU"]
    details = tensorflow.config.experimental.get_device_details
    return tuple(str(details(device).get("device_name", device.name)) for device in devices)


def _own_cpu_seconds() -> float:
    """CPU seconds of this process and of those that it started, whose work is its own."""
    process = psutil.Process()
    times = process.cpu_times()
    seconds = times.user + times.system + times.children_user + times.children_system
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended since
            theirs = child.cpu_times()
            seconds += theirs.user + theirs.system
    return float(seconds)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _cpu_name(description: Path) -> str:
    return described("model name", description) or platform.processor() or platform.machine()


def machine_name(description: Path = CPU_DESCRIPTION) -> str:
    """A short name of this machine, fit for a folder: its processor and its cores, as `epyc-zen3-2`."""
    model = re.sub(r"\((?:R|TM)\)|\b(?:AMD|Intel|CPU|Processor|with|\d+-Core)\b|@.*", " ", _cpu_name(description))
    generation = _microarchitecture(description) or ("" if re.search(r"\d", model) else _vectors(description))
    words = re.findall(r"[a-z0-9]+", f"{model} {generation} {usable_cores()}".lower())
    return "-".join(words)


def _vectors(description: Path) -> str:
    """The widest arithmetic of a processor whose name hides its generation, as names in clouds do; empty: narrow."""
    widest = {"amx_tile": "amx", "avx512f": "avx512", "avx2": "avx2"}
    return next((name for feature, name in widest.items() if feature in _cpu_features(description)), "")


def _microarchitecture(description: Path) -> str:
    """That of an AMD processor; empty for others."""
    if described("vendor_id", description) != "AuthenticAMD":
        return ""
    family, model = (int(described(heading, description) or 0) for heading in ("cpu family", "model"))
    return next((name for number, models, name in ZEN if family == number and model in models), "")


def _cpu_features(description: Path) -> tuple[str, ...]:
    has = flags_of_cpu(description)
    return tuple(feature for feature in CPU_FEATURES if feature in has)


def _variables() -> dict[str, str]:
    """The recorded environment variables; a value may be any bytes, and long ones are cut."""
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLE_PREFIXES)}
    return {escape_unprintable(name): escape_unprintable(value)[:4000] for name, value in chosen.items()}


@functools.cache
def _package_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _git_revision(folder: Path) -> str | None:
    def git(*arguments: str) -> str:
        done = run(["git", "-C", folder, *arguments], deadline=5)
        if done.code:
            raise OSError(done.errors)
        return done.output.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except OSError:
        return None
