"""Ceilings measured for real, in processes that end whatever happens."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings.figures import Order
from tfperf.hardware.ceilings.measuring import CeilingProcess, measure_ceilings
from tfperf.system import usable_cores

DEADLINE = 240
"""Seconds; what is waited for takes ten."""

QUICK = Order(threads=1, quick=True)

PARENT = """
from tfperf.hardware.ceilings.figures import Order
from tfperf.hardware.ceilings.measuring import CeilingProcess
with CeilingProcess(Order(threads=1, quick=True), 600, lambda _: None) as process:
    print(process._process.pid, flush=True)
    process.wait_until_ready()
"""


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def ceilings(told):
    return measure_ceilings([1], quick=True, on_step=told.append, deadline=DEADLINE)


@pytest.mark.timeout(DEADLINE + 30)
def test_a_quick_measurement_has_every_figure(ceilings, told):
    assert ceilings.quick
    assert ceilings.threads == (1,)
    for dtype in ("float32", "bfloat16"):
        assert ceilings.peak(dtype, 1) > 1e8
    for kind in ("pointwise", "weights"):
        assert ceilings.bandwidth(2**22, 1, kind) > 1e8
    assert 0 < ceilings.call("python call") < ceilings.call("eager op") < ceilings.call("tf.function call")
    assert 0 < ceilings.call("graph op") < ceilings.call("model call")
    assert ceilings.environment.packages["tensorflow"]
    assert 0 < ceilings.loopback_seconds < 1
    assert any("float32 products" in words for words in told)
    assert told[0].startswith("1 thread: ")


@pytest.mark.timeout(DEADLINE + 30)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_type_is_a_figure_or_a_reason(ceilings, dtype):
    refused = [one for one in ceilings.refusals if one.name == f"{dtype} products"]
    assert refused or ceilings.peak(dtype, 1) > 1e7
    assert all(one.reason for one in refused)


@pytest.mark.timeout(DEADLINE + 30)
def test_the_doubts_tell_of_passes_that_disagree(ceilings):
    for doubt in ceilings.doubts:
        assert "too noisy" in doubt.words
    figures = (*ceilings.products, *ceilings.bandwidths, *ceilings.calls)
    marked = not all(one.repeatable for one in figures)
    assert bool(ceilings.doubts) >= (marked or not ceilings.disk_repeatable or not ceilings.loopback_repeatable)


def test_a_process_that_is_late_is_ended():
    with CeilingProcess(QUICK, 0.2, lambda _: None) as process:
        with pytest.raises(HardwareError, match=r"within 0\.2 s"):
            process.wait_until_ready()
        assert not psutil.pid_exists(process._process.pid)


def test_a_process_that_dies_is_told_in_one_line():
    with CeilingProcess(QUICK, DEADLINE, lambda _: None) as process:
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(HardwareError, match="was killed by signal 9") as told:
            process.wait_until_ready()
    assert "\n" not in str(told.value)


def test_it_ends_with_the_block_that_started_it():
    with pytest.raises(KeyboardInterrupt), CeilingProcess(QUICK, DEADLINE, lambda _: None) as process:
        raise KeyboardInterrupt
    assert not psutil.pid_exists(process._process.pid)


@pytest.mark.timeout(DEADLINE + 30)
def test_it_ends_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-P", "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    child.wait(timeout=DEADLINE)


@pytest.mark.parametrize("threads", [[], [0], [1, -1]])
def test_a_number_of_threads_under_one_is_refused(threads):
    with pytest.raises(ValueError, match="1 thread or more"):
        measure_ceilings(threads)


@pytest.mark.parametrize(
    ("threads", "wanted"),
    [(None, sorted({1, usable_cores()}, reverse=True)), ([3], [3, 1]), ([1, 4, 3], [4, 3, 1]), ([1], [1])],
)
def test_one_thread_measures_the_memory_for_all_and_the_most_measure_calls(monkeypatch, threads, wanted):
    asked = []

    class Asked:
        def __init__(self, order, *_):
            asked.append(order)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait_until_ready(self):
            raise HardwareError("enough")

    monkeypatch.setattr("tfperf.hardware.ceilings.measuring.CeilingProcess", Asked)
    with pytest.raises(HardwareError, match="enough"):
        measure_ceilings(threads)
    assert [order.threads for order in asked] == wanted
    assert [order.threads for order in asked if order.calls] == wanted[:1]
    assert {order.threads: order.memory for order in asked if order.memory} == {1: tuple(reversed(wanted))}
