"""A program: load Horovod's extension beside TensorFlow's libraries and say what it was built with.

    python -I loading.py FRAMEWORK CC EXTENSION

prints JSON: operation -> 0 or 1, for nccl its version code. It takes half a second, where `import horovod.tensorflow`
takes several; that all symbols of the extension are found in this TensorFlow is proved by both.
"""

import ctypes
import json
import sys

__all__ = ["OPERATIONS", "main"]

OPERATIONS = ("gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl")
"""What Horovod can be built with: each has a function `horovod_NAME_built` in the extension."""


def main(framework: str, cc: str, extension: str) -> None:
    """Load the three libraries in this order and print what the last one answers."""
    for library in (framework, cc):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    horovod = ctypes.CDLL(extension)
    print(json.dumps({name: int(getattr(horovod, f"horovod_{name}_built")()) for name in OPERATIONS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
