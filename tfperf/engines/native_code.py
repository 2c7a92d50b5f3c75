"""Memory and threads of the compiled code that engines run."""

import contextlib
import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SOURCES", "count_unnamed_threads", "view_memory"]

SOURCES = Path(__file__).parent / "native"


def view_memory(place: int, shape: Sequence[int], dtype: str, owner: object = None) -> NDArray[Any]:
    """Memory of compiled code as an array.

    Args:
        place: address of the first byte.
        dtype: as NumPy calls it.
        owner: what the memory lives as long as; the array keeps it alive.
    """
    kind = np.dtype(dtype)
    memory: Any = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(place)
    memory.owner = owner
    return np.ndarray(shape, kind, memory)


def count_unnamed_threads() -> int:
    """Threads of this process that nobody gave a name, as those of Eigen's pools: they have the main thread's."""
    tasks = Path("/proc/self/task")
    own = Path("/proc/self/comm").read_text(encoding="utf-8")
    count = 0
    for file in tasks.glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has ended since
            count += file.read_text(encoding="utf-8") == own
    return count
