"""A machine made up of round numbers, and what was seen of a net on it."""

import pytest
import tensorflow as tf

from tfperf.cores import usable_cores
from tfperf.explaining.explanation import CallTime, Explained, Explanation, Layer, Roof, Xla
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate
from tfperf.hardware.kernels.prediction import Prediction
from tfperf.hardware.kernels.times import KernelTimes

PEAK, BANDWIDTH = 100e9, 10e9
"""FLOP/s and bytes/s."""

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
    return Prediction(ceilings, KernelTimes(2, tmp_path / "times", by_size))


@pytest.fixture
def kernels_by_size(monkeypatch):
    """Kernels take what their size says, and are not measured."""
    monkeypatch.setattr("tfperf.hardware.kernels.times.alone", by_size)


def layer(name="dense", **changes):
    fields = {
        "name": name, "flops": 4000, "bytes": 2000, "kernels": 2, "seconds": 8e-6, "predicted": 9e-6, "at_best": 4e-6,
        "compute": 5e-6, "bandwidth": 2e-6, "overhead": 1e-6,
    }  # fmt: skip
    return Layer(**fields | changes)


def call(way="graph", **changes):
    fields = {
        "way": way, "seconds": 1e-4, "predicted": 9e-5, "kernels": 3, "compute": 5e-6, "bandwidth": 2e-6,
        "overhead": 9.3e-5, "between": 9e-5,
    }  # fmt: skip
    return CallTime(**fields | changes)


XLA = Xla(compiled=True, reason="", operations=9, kernels=4, fusions=2, bytes_before=4000, bytes_after=1000)


@pytest.fixture
def explained():
    """A function that makes what was seen of a net at a batch size."""

    def explained(**changes):
        fields = {
            "batch": 1, "flops": 5000, "bytes": 2500, "calls": (call(),), "comparison": None,
            "layers": (layer(), layer("norm", flops=0, seconds=2e-6, compute=0.0, bandwidth=2e-6, overhead=0.0)),
            "tracing_cost": 0.2, "disturbance": 1.0, "xla": XLA,
        }  # fmt: skip
        return Explained(**fields | changes)

    return explained


@pytest.fixture
def explanation(environment, explained):
    """A function that makes an explanation."""

    def explanation(**changes):
        fields = {
            "model": "net", "opened_as": "net.py:build", "training": False, "threads": 2, "environment": environment,
            "roofs": (Roof(name="float32", flops_per_second=PEAK), Roof(name="memory", bytes_per_second=BANDWIDTH)),
            "batches": (explained(),), "traces": 1,
        }  # fmt: skip
        return Explanation(**fields | changes)

    return explanation


@pytest.fixture
def layer_of_net():
    """The function `layer`."""
    return layer


@pytest.fixture
def call_of_net():
    """The function `call`."""
    return call
