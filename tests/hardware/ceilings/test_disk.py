"""Files on the disk, and how fast one comes from there."""

from types import SimpleNamespace

import pytest

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import disk
from tfperf.hardware.ceilings.disk import file_on_disk, read_disk


def test_a_disk_is_read_and_nothing_is_left_on_it(tmp_path):
    found = read_disk(tmp_path / "new", 8 * 2**20)
    assert not list((tmp_path / "new").iterdir())
    if found is not None:  # a folder in memory has no disk to tell of
        assert 0 < found.seconds < 1e-5
        assert len(found.passes) == 8


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
