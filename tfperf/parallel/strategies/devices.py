"""The devices of this process that replicas or parts of a net run on."""

import contextlib

import tensorflow as tf

from tfperf.errors import TfperfError

__all__ = ["find_devices"]


def find_devices(number: int) -> list[str]:
    """The names of so many GPUs, or where there is none, of logical CPU devices, which share this machine's cores.

    Memory of the GPUs is taken as it is needed.

    Raises:
        TfperfError: there are fewer GPUs, or TensorFlow has started with fewer CPU devices.
    """
    gpus, (cpu, *_) = tf.config.list_physical_devices("GPU"), tf.config.list_physical_devices("CPU")
    with contextlib.suppress(RuntimeError):  # TensorFlow has started: the devices are as they are
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if not gpus and len(tf.config.get_logical_device_configuration(cpu) or ()) < number:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(number)]
            tf.config.set_logical_device_configuration(cpu, parts)
    names = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
    if len(names) < number and gpus:
        raise TfperfError(f"expected at most as many devices as GPUs, {len(names)}. Received: {number}")
    if len(names) < number:
        raise TfperfError(
            f"expected {number} logical CPU devices, TensorFlow has started with {len(names)}; ask for them before it "
            "computes anything in this process, or call tf.config.set_logical_device_configuration first"
        )
    return names[:number]
