"""A program: load Horovod's extension beside TensorFlow's libraries and say what it was built with.

    python -I loading.py FRAMEWORK CC EXTENSION

prints JSON: operation -> 0 or 1, for nccl its version code, and mpi_version -> how its MPI calls itself. It takes half
a second, where `import horovod.tensorflow` takes several; that all symbols of the extension are found in this
TensorFlow is proved by both.
"""

import ctypes
import json
import re
import sys

__all__ = ["MPI_VERSION", "OPERATIONS", "main"]

MPI_VERSION = "mpi_version"
LONGEST = 8192
"""MPI_MAX_LIBRARY_VERSION_STRING, of MPICH; Open MPI's is shorter."""

OPERATIONS = ("gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl")
"""What Horovod can be built with: each has a function `horovod_NAME_built` in the extension."""


def main(framework: str, cc: str, extension: str) -> None:
    """Load the three libraries in this order and print what the last one answers."""
    for library in (framework, cc):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    horovod = ctypes.CDLL(extension)
    answers = {name: int(getattr(horovod, f"horovod_{name}_built")()) for name in OPERATIONS}
    print(json.dumps(answers | ({MPI_VERSION: mpi_version(horovod)} if answers["mpi"] else {})))


def mpi_version(horovod: ctypes.CDLL) -> str:
    """How the MPI calls itself that an extension has loaded, such as "MPICH Version: 5.0.2"."""
    said, length = ctypes.create_string_buffer(LONGEST), ctypes.c_int()
    horovod.MPI_Get_library_version(said, ctypes.byref(length))  # may be called before MPI is initialized
    return " ".join(re.split(r"[,\n]", said.value.decode(errors="replace"))[0].split())


if __name__ == "__main__":
    main(*sys.argv[1:])
