"""Caches as the system tells of them, the disk, and the loopback network."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from tfperf.errors import HardwareError
from tfperf.hardware.caches import Cache, data_caches
from tfperf.hardware.ceilings import disk, echo, loopback
from tfperf.hardware.ceilings.disk import file_on_disk, read_disk
from tfperf.hardware.ceilings.loopback import measure_loopback


@pytest.fixture
def told(tmp_path):
    """A function that has the system tell of a cache."""

    def told(index, **facts):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in facts.items():
            (folder / name).write_text(f"{value}\n")

    return told


def test_caches_for_data_the_nearest_first(told, tmp_path):
    told(3, type="Unified", level=3, size="32768K", coherency_line_size=64, shared_cpu_list="0-3,8-11")
    told(0, type="Data", level=1, size="48K", coherency_line_size=64, shared_cpu_list="0")
    told(1, type="Instruction", level=1, size="32K", coherency_line_size=64, shared_cpu_list="0")
    told(2, type="Unified", level=2, size="1M", coherency_line_size=128, shared_cpu_list="0,8")
    assert data_caches(tmp_path) == (
        Cache(level=1, size=48 * 2**10, line=64, shared_by=1),
        Cache(level=2, size=2**20, line=128, shared_by=2),
        Cache(level=3, size=32 * 2**20, line=64, shared_by=8),
    )
    assert data_caches(tmp_path)[0].name == "L1"


def test_what_the_system_does_not_tell_is_left_out(told, tmp_path):
    told(0, type="Data", level=1, size="", coherency_line_size=64, shared_cpu_list="0")
    told(1, type="Data", level=1)
    assert data_caches(tmp_path) == ()
    assert data_caches(tmp_path / "none") == ()


def test_a_disk_is_read_and_nothing_is_left_on_it(tmp_path):
    found = read_disk(tmp_path / "new", 8 * 2**20)
    assert not list((tmp_path / "new").iterdir())
    if found is not None:  # a folder in memory has no disk to tell of
        assert found.bytes_per_second == disk.PIECE / min(found.pieces.passes) > 1e5
        assert 0 < found.random_read_seconds < 10
        assert [len(one.passes) for one in found] == [8, 8]


def test_a_disk_that_is_full_or_out_of_reach_is_not_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert read_disk(tmp_path / "file") is None
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    assert read_disk(tmp_path) is None
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_a_file_is_written_and_gone_afterwards(tmp_path):
    size = disk.PIECE + 100
    with file_on_disk(tmp_path, size) as path:
        assert path.parent == tmp_path
        assert path.stat().st_size == size
        assert len(set(path.read_bytes())) == 256  # random bytes, which no disk compresses
    assert not list(tmp_path.iterdir())


def test_a_file_is_gone_after_an_error_of_its_reader_which_stays_what_it_is(tmp_path):
    with pytest.raises(OSError, match="of the reader"), file_on_disk(tmp_path, 10):
        raise OSError("of the reader")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(HardwareError, match=r"cannot write a file in .*none"), file_on_disk(tmp_path / "none", 10):
        pass
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=39))
    with pytest.raises(HardwareError, match=r"expected 40 free bytes .* there are 39"), file_on_disk(tmp_path, 10):
        pass
    monkeypatch.undo()

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", fail)
    with pytest.raises(HardwareError, match="No space left"), file_on_disk(tmp_path, 10):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_reads_past_memory_is_not_told(tmp_path, monkeypatch):
    def refuse(file, command, *arguments):
        if arguments:
            raise OSError(22, "Invalid argument")
        return 0

    monkeypatch.setattr(disk.fcntl, "fcntl", refuse)
    assert read_disk(tmp_path, 8 * 2**20) is None


def test_loopback_is_there_and_leaves_no_process():
    before = {process.pid for process in psutil.Process().children()}
    found = measure_loopback(2**24)
    assert 0 < found.round_trip_seconds < 1
    assert found.bytes_per_second > 1e6
    assert [len(one.passes) for one in found] == [8, 8]
    assert {process.pid for process in psutil.Process().children()} == before


def test_loopback_listens_on_this_machine_alone(monkeypatch):
    asked = []
    genuine = socket.create_server

    def create_server(address, **options):
        asked.append(address[0])
        return genuine(address, **options)

    monkeypatch.setattr(loopback.socket, "create_server", create_server)
    measure_loopback(2**20)
    assert asked == ["127.0.0.1"]


def test_without_an_answer_loopback_is_not_told(monkeypatch, tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(loopback.echo, "__file__", str(silent))
    monkeypatch.setattr(loopback, "DEADLINE", 0.2)
    assert measure_loopback() is None
    silent.write_text("")
    assert measure_loopback() is None
    assert not [one for one in psutil.Process().children() if str(silent) in one.cmdline()]


def test_the_other_end_sends_back_single_bytes_and_tells_when_all_are_there():
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(30)
        here.sendall(b"ab" + bytes(1000))
        echo.answer(_Plain(there), 2, 1000)
        assert here.recv(10) == b"ab."


class _Plain:
    """A socket that is not TCP's, whose options differ."""

    def __init__(self, line):
        self._line = line

    def setsockopt(self, *_):
        pass

    def __getattr__(self, name):
        return getattr(self._line, name)
