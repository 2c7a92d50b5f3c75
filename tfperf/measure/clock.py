"""The clock that measures, what reading it costs, and the devices that it must wait for.

This room never imports TensorFlow. But a reading of the clock while a GPU still works is a wrong
number, and forgetting the wait must not be the default; so a TensorFlow that the process has loaded
already is asked.
"""

import sys
import time
from collections.abc import Callable
from types import ModuleType

__all__ = [
    "Clock",
    "Synchronizer",
    "device_synchronizer",
    "loaded_tensorflow",
    "read_cost",
    "wait_for_devices",
    "wall_clock",
]

Clock = Callable[[], float]
"""Returns seconds from any origin; never goes backwards."""

Synchronizer = Callable[[], None]
"""Returns when all work handed to the devices so far is done."""

wall_clock: Clock = time.perf_counter


def read_cost(clock: Clock, synchronize: Synchronizer, tries: int = 200) -> float:
    """Seconds that the two readings around a sample, with the wait before the second, add to it.

    The median over many empty samples: a stray interruption of one of them is not a cost.
    """
    costs = []
    for _ in range(tries):
        synchronize()
        start = clock()
        synchronize()
        costs.append(clock() - start)
    return sorted(costs)[tries // 2]


def device_synchronizer() -> Synchronizer:
    """The synchronizer that this process needs now.

    On CPU TensorFlow's calls return when the work is done, and waiting costs nothing, unless
    `tf.config.experimental.set_synchronous_execution(False)` was called.
    """
    tensorflow = loaded_tensorflow()
    if tensorflow is None:
        return _nothing
    synchronous = tensorflow.config.experimental.get_synchronous_execution()
    if synchronous and all(device.device_type == "CPU" for device in tensorflow.config.list_physical_devices()):
        return _nothing
    wait: Synchronizer = tensorflow.test.experimental.sync_devices
    return wait


def wait_for_devices() -> None:
    """Return when all work handed to the devices of this process is done."""
    device_synchronizer()()


def loaded_tensorflow() -> ModuleType | None:
    """TensorFlow, if this process has imported it whole."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and hasattr(tensorflow, "config") else None


def _nothing() -> None:
    """The wait of a process whose calls return when their work is done."""
