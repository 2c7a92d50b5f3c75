"""Files and folders are written whole or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tfperf.files import why_not_writable, writing_folder_whole, writing_whole


def fail_after(done: object, error: BaseException) -> None:
    """Raise the error, once what made `done` is done."""
    raise error


def test_a_file_appears_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with writing_whole(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_old_file_stays_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with writing_whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(error), writing_whole(path) as file:
        fail_after(file.write(b"new"), error())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_step_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="No space"), writing_whole(path) as file:
        file.write(b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda d: (events.append("folder" if stat.S_ISDIR(os.fstat(d).st_mode) else "file"), fsync(d))
    )
    monkeypatch.setattr(Path, "replace", lambda self, target: (events.append("rename"), replace(self, target))[1])
    with writing_whole(tmp_path / "a.bin") as file:
        file.write(b"new")
    assert events == ["file", "rename", "folder"]


def test_the_file_is_an_ordinary_one(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with writing_whole(tmp_path / "a.bin") as file:
            file.write(b"new")
        assert os.umask(0o027) == 0o027  # the process's mask is left as it was
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640


def test_writers_at_once_leave_one_of_their_files_whole(tmp_path: Path) -> None:
    path, start = tmp_path / "a.bin", threading.Barrier(8)

    def write(letter: bytes) -> None:
        start.wait()
        for _ in range(5):
            with writing_whole(path) as file:
                for _ in range(20):
                    file.write(letter * 1000)

    writers = [threading.Thread(target=write, args=(bytes([65 + i]),)) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    content = path.read_bytes()
    assert len(content) == 20_000
    assert len(set(content)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), writing_whole(tmp_path / "none" / "a.bin"):
        pass


# ---------------------------------------------------------------- folders


def fill(folder: Path, content: str) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "a.txt").write_text(content)


def test_a_folder_appears_whole_and_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "models" / "net"
    for content in ("one", "two"):
        with writing_folder_whole(path) as folder:
            fill(folder, content)
        assert (path / "deep" / "a.txt").read_text() == content
        assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with writing_folder_whole(path) as folder:
        fill(folder, "old")
    with pytest.raises(KeyboardInterrupt), writing_folder_whole(path) as folder:
        fail_after(fill(folder, "new"), KeyboardInterrupt())
    assert (path / "deep" / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_rename_that_fails_does_not_lose_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "net"
    with writing_folder_whole(path) as folder:
        fill(folder, "old")
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(type(error)), writing_folder_whole(path) as folder:
        fill(folder, "new")
    assert (path / "deep" / "a.txt").read_text() == "old"


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.write_text("someone's work")
    with pytest.raises(OSError, match="net"), writing_folder_whole(path) as folder:
        fill(folder, "new")
    assert path.read_text() == "someone's work"


# ---------------------------------------------------------------- before the work


@pytest.mark.parametrize("place", ["new.json", "deep/down/new.json", "old.json"])
def test_where_a_file_can_be_written_there_is_no_reason(tmp_path: Path, monkeypatch, place: str) -> None:
    (tmp_path / "old.json").touch()
    assert why_not_writable(tmp_path / place) is None
    monkeypatch.chdir(tmp_path)
    assert why_not_writable(Path(place)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_why_a_file_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path) == f"expected a file, {tmp_path} is a folder"
    assert why_not_writable(tmp_path / "file" / "new.json") == f"cannot write in {tmp_path / 'file'}"
    monkeypatch.setattr(os, "access", lambda folder, _: folder != tmp_path)  # root may write everywhere
    assert why_not_writable(tmp_path / "deep" / "new.json") == f"cannot write in {tmp_path}"
