"""A process in which TensorFlow has two devices."""

import pytest
import tensorflow as tf

from tests.fixtures.amx import amx  # noqa: F401
from tfperf.processes import WorkerProcesses


@pytest.fixture(scope="session")
def two_devices():
    """A function that calls another one in a process where TensorFlow has two logical CPU devices from its start."""
    with WorkerProcesses(1) as workers:
        workers.run(make_two_devices, [()])
        yield lambda function, *arguments: workers.run(function, [arguments])[0]


def make_two_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)])
