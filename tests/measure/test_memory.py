"""Peak memory of this process."""

from pathlib import Path

import pytest

from tfperf.measure import memory
from tfperf.measure.memory import PeakMemory

MIB = 2**20

needs_reset = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system cannot reset the high-water mark"
)


def allocate(size: int) -> None:
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])  # touch every page


@needs_reset
def test_an_allocation_that_is_gone_shows_in_the_peak() -> None:
    watch = PeakMemory()
    allocate(200 * MIB)
    peak = watch.read()
    assert 195 * MIB <= peak.resident - peak.resident_before <= 260 * MIB
    assert not peak.of_whole_process


@needs_reset
def test_a_second_watch_does_not_inherit_the_first_ones_peak() -> None:
    first = PeakMemory()
    allocate(200 * MIB)
    high = first.read().resident
    peak = PeakMemory().read()
    assert peak.resident < high - 150 * MIB
    assert peak.resident - peak.resident_before < 20 * MIB


def test_where_the_mark_cannot_be_reset_the_peak_is_of_the_whole_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no folder" / "clear_refs")
    peak = PeakMemory().read()
    assert peak.of_whole_process
    assert peak.resident > peak.resident_before - MIB > 0  # the two are counted apart, and differ by some pages


def test_there_is_no_device_memory_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfperf.measure.devices._loaded_tensorflow", lambda: None)
    assert PeakMemory().read().device is None


def test_device_memory_is_reset_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    monkeypatch.setattr(memory, "reset_peak_device_memory", lambda: events.append("reset"))
    monkeypatch.setattr(memory, "peak_device_memory", lambda: events.append("read") or 12345)
    assert PeakMemory().read().device == 12345
    assert events == ["reset", "read"]
