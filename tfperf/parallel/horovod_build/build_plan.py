"""What is to be built, as an immutable value: its key in the cache, and the environment that tells Horovod's build."""

import dataclasses
import hashlib
import os
import re
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tfperf.native.processor import flags_of_cpu
from tfperf.parallel.horovod_build.requirements import Compiler, InstalledTensorFlow, Mpi, Nccl

__all__ = ["VERSION", "BuildPlan"]

VERSION = "0.28.1"
"""The Horovod that is built."""

USERS_VARIABLES = (
    *("CC", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAFLAGS", "CUDAHOSTCXX"),
    *("HOROVOD_CPU_OPERATIONS", "HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_DEBUG", "CCL_ROOT", "CCL_CONFIGURATION"),
    *("HOROVOD_GPU", "HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_ALLGATHER"),
    *("HOROVOD_GPU_BROADCAST", "HOROVOD_GPU_ALLTOALL", "HOROVOD_GPU_REDUCESCATTER", "HOROVOD_ALLOW_MIXED_GPU_IMPL"),
    *("HOROVOD_CUDA_HOME", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_ROCM_HOME"),
    *("HOROVOD_NCCL_HOME", "HOROVOD_NCCL_INCLUDE", "HOROVOD_NCCL_LIB", "HOROVOD_NCCL_LINK"),
    *("HOROVOD_WITHOUT_NVTX", "HOROVOD_WITH_NVTX", "HOROVOD_NVTX_INCLUDE"),
)
"""What a user may set to change the build: it reaches Horovod's build as it is, and is a part of the key."""

_X86_FLAGS = ("avx", "f16c", "fma")
"""What Horovod asks gcc -march=native for."""


@dataclasses.dataclass(frozen=True)
class BuildPlan:
    """A Horovod to build.

    Attributes:
        tensorflow: what for.
        compiler: what with.
        mpi: an MPI beside Gloo, or None.
        nccl: NCCL for GPUs, or None.
        processor: those of avx, f16c and fma that this processor has; Horovod compiles for them.
        variables: the user's own settings, of USERS_VARIABLES.
    """

    tensorflow: InstalledTensorFlow
    compiler: Compiler
    mpi: Mpi | None
    nccl: Nccl | None
    processor: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls, tensorflow: InstalledTensorFlow, compiler: Compiler, mpi: Mpi | None, nccl: Nccl | None) -> Self:
        """The plan for this machine and this process's environment."""
        variables = tuple((name, os.environ[name]) for name in USERS_VARIABLES if os.environ.get(name))
        return cls(tensorflow, compiler, mpi, nccl, _processor(), variables)

    @property
    def key(self) -> str:
        """The name of what is built, fit for a folder: equal for two builds of which one can stand for the other."""
        parts = [
            f"horovod-{VERSION}",
            f"{self.tensorflow.distribution}-{self.tensorflow.version}",
            str(sysconfig.get_config_var("SOABI")),  # Python, processor, system: "cpython-311-x86_64-linux-gnu"
            *(["+".join(self.processor)] if self.processor else []),
            f"{self.compiler.name}-{self.compiler.version}",
            "gloo",
            *([self.mpi.name] if self.mpi else []),
            *([f"nccl-{self.nccl.version}-cuda-{self.nccl.cuda}"] if self.nccl else []),
        ]
        if self.variables:
            parts.append(f"env-{hashlib.sha256(repr(self.variables).encode()).hexdigest()[:8]}")
        return re.sub(r"[^\w.+-]", "_", "_".join(parts))

    def environment(
        self,
        base: Mapping[str, str],
        *,
        tools: Path,
        forwarding: Path,
        include: Sequence[Path],
        library: Path,
        jobs: int,
    ) -> dict[str, str]:
        """The environment of Horovod's build.

        Args:
            base: the environment to add to, without what would make the build another one.
            tools: the folder into which pip has put setuptools, cmake and their like.
            forwarding: a folder of headers that come before all others.
            include: more folders for the include path.
            library: a folder with a library to link that the system does not have under the name asked for.
            jobs: how many files to compile at once.
        """
        flags = [f"-iquote{forwarding}", *(f"-I{folder}" for folder in include)]
        environment = {
            **base,
            "HOROVOD_WITH_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "CXX": shlex.join(self.compiler.command),
            "CXXFLAGS": " ".join([*flags, base.get("CXXFLAGS", "")]).strip(),
            "MAKEFLAGS": f"-j{jobs}",
            "PATH": os.pathsep.join([str(tools / "bin"), base.get("PATH", os.defpath), *self._mpi_folder()]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tools), base.get("PYTHONPATH", "")])),
            "PYTHONUNBUFFERED": "1",
            "LC_ALL": "C",
        }
        if self.processor:
            environment.setdefault("HOROVOD_BUILD_ARCH_FLAGS", " ".join(f"-m{flag}" for flag in self.processor))
        if self.nccl:
            environment |= self._nccl_environment(self.nccl, base, library)
        return environment

    def _mpi_folder(self) -> list[str]:
        """Where CMake finds an MPI that is not on the PATH."""
        return [str(self.mpi.folder)] if self.mpi and self.mpi.folder else []

    def _nccl_environment(self, nccl: Nccl, base: Mapping[str, str], library: Path) -> dict[str, str]:
        changes = {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": str(nccl.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(nccl.include),
            "HOROVOD_NCCL_LIB": str(library if nccl.from_pip else nccl.library.parent),
        }
        if nccl.from_pip:  # found again from horovod/tensorflow/ in any environment
            rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"
            changes["LDFLAGS"] = f"{base.get('LDFLAGS', '')} {rpath}".strip()
        return changes


def _processor() -> tuple[str, ...]:
    flags = flags_of_cpu()
    return tuple(flag for flag in _X86_FLAGS if flag in flags)
