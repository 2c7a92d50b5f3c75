"""Peak memory of this process, and how much it may take."""

from pathlib import Path
from types import SimpleNamespace

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
    monkeypatch.setattr("tfperf.measure.memory.loaded_tensorflow", lambda: None)
    assert PeakMemory().read().device is None


def test_device_memory_is_reset_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    monkeypatch.setattr(memory, "reset_peak_device_memory", lambda: events.append("reset"))
    monkeypatch.setattr(memory, "peak_device_memory", lambda: events.append("read") or 12345)
    assert PeakMemory().read().device == 12345
    assert events == ["reset", "read"]


# ---------------------------------------------------------------- control groups


@pytest.fixture
def groups(tmp_path):
    """A function that makes control groups: lines of /proc/self/cgroup, and {folder: (limit, used, reclaimable)}."""

    def groups(lines, folders, version):
        mount = tmp_path / "mount"
        for folder, (limit, used, inactive) in folders.items():
            group = mount / folder
            group.mkdir(parents=True, exist_ok=True)
            names = ("memory.max", "memory.current", "inactive_file")
            if version == 1:
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            (group / names[0]).write_text(f"{limit}\n")
            (group / names[1]).write_text(f"{used}\n")
            (group / "memory.stat").write_text(f"anon 1\n{names[2]} {inactive}\nx 2\n")
        (tmp_path / "cgroup").write_text(lines)
        return memory.memory_limits(tmp_path / "cgroup", mount)

    return groups


def test_no_control_groups_are_no_limit(tmp_path, groups):
    assert memory.memory_limits(tmp_path / "none", tmp_path) == []
    assert groups("0::/\n", {".": ("max", 5, 0)}, 2) == []
    assert groups("", {}, 2) == []


def test_the_container_s_own_group_is_read_and_its_files_do_not_count(groups):
    assert groups("0::/\n", {".": (100, 60, 20)}, 2) == [(100, 40)]


def test_the_group_above_that_leaves_least_comes_first(groups):
    folders = {".": (1000, 300, 0), "user": (500, 290, 0), "user/session": ("max", 280, 0)}
    assert groups("0::/user/session\n", folders, 2) == [(500, 290), (1000, 300)]


def test_groups_of_version_1_are_read_too(groups):
    lines = "11:cpu,cpuacct:/x\n9:name=systemd:/y\n4:memory,other:/docker/abc\n0::/z\n"
    unlimited = 9223372036854771712
    folders = {"memory": (unlimited, 900, 0), "memory/docker/abc": (400, 100, 30)}
    assert groups(lines, folders, 1) == [(400, 70), (unlimited, 900)]


def test_the_hosts_path_inside_a_container_falls_back_to_the_root(groups):
    assert groups("4:memory:/docker/of/the/host\n", {"memory": (400, 100, 0)}, 1) == [(400, 100)]


def test_a_process_of_a_group_outside_the_container_gets_the_containers_limit(groups):
    assert groups("0::/../../x\n", {".": (400, 100, 0)}, 2) == [(400, 100)]


@pytest.mark.parametrize(
    ("limits", "usable", "available"),
    [
        ([], 16, 8),
        ([(10, 4)], 10, 6),
        ([(10, 1)], 10, 8),
        ([(64, 60), (12, 2)], 12, 4),  # the group with the least left is not the one with the lowest limit
        ([(10, 11)], 10, 0),
    ],
)
def test_memory_is_what_the_machine_and_its_control_groups_leave(monkeypatch, limits, usable, available) -> None:
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(total=16, available=8))
    monkeypatch.setattr(memory, "memory_limits", lambda: [memory.MemoryLimit(*limit) for limit in limits])
    assert (memory.usable_memory(), memory.available_memory()) == (usable, available)
