"""What the devices of this process are asked: to finish, and how much memory they took.

This room never imports TensorFlow. But a reading of the clock while a GPU still works is a wrong
number, and forgetting the wait must not be the default; so a TensorFlow that the process has loaded
already is asked.
"""

import sys
from types import ModuleType

from tfperf.measure.clock import Synchronizer

__all__ = [
    "accelerator_names",
    "device_synchronizer",
    "peak_device_memory",
    "reset_peak_device_memory",
    "wait_for_devices",
]


def device_synchronizer() -> Synchronizer:
    """The synchronizer that this process needs now.

    On CPU TensorFlow's calls return when the work is done, and waiting costs nothing, unless
    `tf.config.experimental.set_synchronous_execution(False)` was called.
    """
    tensorflow = _loaded_tensorflow()
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


def accelerator_names() -> tuple[str, ...]:
    """The GPUs and other accelerators that this process sees, by their makers' names; empty without TensorFlow."""
    tensorflow = _loaded_tensorflow()
    if tensorflow is None:
        return ()
    devices = [device for device in tensorflow.config.list_physical_devices() if device.device_type != "CPU"]
    details = tensorflow.config.experimental.get_device_details
    return tuple(str(details(device).get("device_name", device.name)) for device in devices)


def reset_peak_device_memory() -> None:
    """Let the peak memory of every GPU start from what is in use now."""
    if tensorflow := _loaded_tensorflow():
        for device in tensorflow.config.list_logical_devices("GPU"):
            tensorflow.config.experimental.reset_memory_stats(device.name)


def peak_device_memory() -> int | None:
    """Most bytes in use on any one GPU since the last reset; None where there is no GPU."""
    tensorflow = _loaded_tensorflow()
    if tensorflow is None:
        return None
    gpus = tensorflow.config.list_logical_devices("GPU")
    peaks = (tensorflow.config.experimental.get_memory_info(gpu.name)["peak"] for gpu in gpus)
    return max((int(peak) for peak in peaks), default=None)


def _loaded_tensorflow() -> ModuleType | None:
    """TensorFlow, if this process has imported it whole."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and hasattr(tensorflow, "config") else None


def _nothing() -> None:
    """The wait of a process whose calls return when their work is done."""
