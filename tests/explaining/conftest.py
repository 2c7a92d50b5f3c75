"""A machine made up of round numbers."""

import pytest
import tensorflow as tf

from tests.fixtures.explanations import BANDWIDTH, PEAK
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate
from tfperf.hardware.kernels.prediction import KernelPredictor
from tfperf.hardware.kernels.times import KernelTimes
from tfperf.system import usable_cores

CALLS = {"python call": 1e-7, "eager op": 1e-5, "tf.function call": 1e-4, "graph op": 1e-6, "model call": 1e-3}


@pytest.fixture(autouse=True, scope="session")
def started():
    """TensorFlow has its threads before anything here chooses others: other tests run in this process, too."""
    tf.constant(0.0)


@pytest.fixture
def ceilings(environment):
    """100 GFLOP/s in float32, twice that in bfloat16, 10 GB/s, whatever the number of threads."""
    counts = {2, usable_cores()}
    return Ceilings(
        environment=environment,
        products=tuple(
            ProductRate(dtype=dtype, threads=threads, size=1024, flops_per_second=rate)
            for threads in counts
            for dtype, rate in (("float32", PEAK), ("bfloat16", 2 * PEAK))
        ),
        bandwidths=tuple(
            Bandwidth(threads=threads, working_set=size, bytes_per_second=BANDWIDTH, kind=kind)
            for threads in counts
            for kind in ("pointwise", "weights")
            for size in (2**14, 2**29)
        ),
        calls=tuple(CallCost(name=name, seconds=seconds) for name, seconds in CALLS.items()),
        disk_read_bytes_per_second=None,
        loopback_seconds=None,
        loopback_bytes_per_second=None,
    )


def by_size(operation, _):
    """A microsecond, and one more for each million numbers that the kernel gives."""
    return 1e-6 * (1 + operation.outputs[0].shape.num_elements() / 1e6)


@pytest.fixture
def prediction(ceilings, tmp_path):
    return KernelPredictor(ceilings, KernelTimes(2, tmp_path / "times", by_size))


@pytest.fixture
def kernels_by_size(monkeypatch):
    """Kernels take what their size says, and are not measured."""
    monkeypatch.setattr("tfperf.hardware.kernels.times.alone", by_size)
