"""Files and folders are written whole or not at all; scratch folders end with their process, however it ends."""

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tfperf import files
from tfperf.files import (
    remove_parts,
    scratch_folder,
    why_not_writable,
    writing_folder_once,
    writing_folder_whole,
    writing_whole,
)


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


@pytest.fixture(params=["in one step", "in two"])
def replacing(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders change places in one step, or, as where the file system cannot, in two."""
    if request.param == "in two":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)


def test_a_folder_is_replaced_where_the_system_can_and_where_it_cannot(tmp_path: Path, replacing: None) -> None:
    path = tmp_path / "net"
    for content in ("one", "two"):
        with writing_folder_whole(path) as folder:
            fill(folder, content)
        assert (path / "deep" / "a.txt").read_text() == content
        assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_neither_the_old_folder_nor_the_new(tmp_path: Path) -> None:
    path = tmp_path / "net"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    if not files._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system or file system cannot exchange two folders in one step")
    with writing_folder_whole(path) as folder:
        fill(folder, "old")
    missed, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            if not path.is_dir():
                missed.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(100):
            with writing_folder_whole(path) as folder:
                (folder / "a.txt").write_text("new")
    finally:
        done.set()
        reader.join()
    assert missed == []


def test_a_folder_whose_content_does_not_reach_the_disk_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems say only then that the disk is full."""
    fsync = os.fsync

    def fail_for_files(descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_files)
    for writing in (writing_folder_whole, writing_folder_once):
        with pytest.raises(OSError, match="No space"), writing(tmp_path / "net") as folder:
            fill(folder, "new")
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_make_the_same_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with writing_folder_once(path) as slow:
        with writing_folder_once(path) as quick:
            fill(quick, "first")
        before = path.stat().st_ino
        fill(slow, "second")
    assert (path / "deep" / "a.txt").read_text() == "first"
    assert (path.stat().st_ino, stat.S_IMODE(path.stat().st_mode)) == (before, 0o700)
    assert list(tmp_path.iterdir()) == [path]


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
    monkeypatch.setattr(files, "_exchange", lambda *_: False)

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


# ---------------------------------------------------------------- what was left half written


def test_what_is_being_written_is_no_left_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GRACE", -1.0)
    (tmp_path / ".a.bin.12345678.part").touch()
    (tmp_path / ".net.12345678.part" / "new").mkdir(parents=True)
    (tmp_path / ".lost.12345678.part" / "old").mkdir(parents=True)  # the only copy, of a replacement that was killed
    (tmp_path / "mine.part").touch()
    (tmp_path / ".link.part").symlink_to(tmp_path / "mine.part")
    with writing_whole(tmp_path / "a.bin") as file, writing_folder_whole(tmp_path / "net") as folder:
        file.write(b"new")
        fill(folder, "new")
        remove_parts(tmp_path)
    left = {".lost.12345678.part", ".link.part", "mine.part"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "net", *left}


def test_a_part_that_was_just_made_stays(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.12345678.part").touch()
    remove_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- a full disk


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_disk_that_is_full_at_any_moment_leaves_the_old_folder(small_disk, in_one_step: bool, monkeypatch) -> None:
    if not in_one_step:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    home = small_disk.root / "home"
    home.mkdir()
    with writing_folder_whole(home / "net") as folder:
        fill(folder, "old")
    failed = 0
    for full in small_disk.fuller_to_emptier():
        try:
            with writing_folder_whole(home / "net") as folder:
                fill(folder, "new" * 5000)
        except OSError as error:
            failed, told = failed + 1, error
            assert told.errno == errno.ENOSPC, full
            assert content(home) == {"net/deep/a.txt": "old"}, full
        else:
            assert content(home) == {"net/deep/a.txt": "new" * 5000}, full
            small_disk.leave()
            with writing_folder_whole(home / "net") as folder:
                fill(folder, "old")
        assert [path.name for path in home.iterdir()] == ["net"], full
    assert failed > 4


@pytest.mark.parametrize("writing", [writing_folder_once, writing_folder_whole])
def test_a_disk_that_is_full_at_any_moment_leaves_no_new_folder(small_disk, writing) -> None:
    home = small_disk.root / "home"
    home.mkdir()
    failed = 0
    for full in small_disk.fuller_to_emptier():
        try:
            with writing(home / "net") as folder:
                fill(folder, "new" * 5000)
        except OSError:
            failed += 1
            assert list(home.iterdir()) == [], full
        else:
            assert content(home) == {"net/deep/a.txt": "new" * 5000}, full
            shutil.rmtree(home / "net")
    assert failed > 4


def test_a_disk_that_is_full_at_any_moment_leaves_the_old_file(small_disk) -> None:
    home = small_disk.root / "home"
    home.mkdir()
    (home / "a.txt").write_text("old")
    failed = 0
    for full in small_disk.fuller_to_emptier():
        try:
            with writing_whole(home / "a.txt") as file:
                for _ in range(50):
                    file.write(b"new" * 100)
        except OSError as error:
            failed, told = failed + 1, error
            assert told.errno == errno.ENOSPC, full
            assert content(home) == {"a.txt": "old"}, full
        else:
            assert content(home) == {"a.txt": "new" * 5000}, full
            small_disk.leave()
            (home / "a.txt").write_text("old")
    assert failed > 4


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


HOLDS = """
import signal
from tfperf.files import scratch_folder
with scratch_folder("tfperf-test-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def another(place):
    """A process that holds a folder, and the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_scratch_folder_is_gone_afterwards(place) -> None:
    with contextlib.suppress(ZeroDivisionError), scratch_folder("tfperf-test-") as folder:
        assert folder.parent == place
        (folder / "file").touch()
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_a_scratch_folder_is_made_where_the_file_system_has_no_locks(place, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with scratch_folder("tfperf-test-") as first, scratch_folder("tfperf-test-") as second:
        assert first.is_dir()
        assert second.is_dir()
    assert not [*place.iterdir()]


def test_the_scratch_folder_of_a_killed_process_goes_and_what_others_hold_stays(another, place, monkeypatch) -> None:
    process, held = another
    (place / "tfperf-test-of-somebody-else").mkdir()
    monkeypatch.setattr(files, "GRACE", -1.0)
    with scratch_folder("tfperf-test-"):
        assert (held / "file").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    monkeypatch.setattr(files, "GRACE", 60.0)
    with scratch_folder("tfperf-test-"):
        assert held.exists()  # it was made a moment ago
    monkeypatch.setattr(files, "GRACE", -1.0)
    with scratch_folder("tfperf-test-"):
        assert not held.exists()
    assert [left.name for left in place.iterdir()] == ["tfperf-test-of-somebody-else"]


@pytest.fixture
def left(place, monkeypatch):
    """A function that makes a folder as a killed process leaves it, long ago."""
    monkeypatch.setattr(files, "GRACE", -1.0)

    def left(name):
        folder = place / f"tfperf-test-{name}"
        folder.mkdir(mode=0o700)
        (folder / files.LOCK).touch()
        return folder

    return left


def test_neither_locks_nor_folders_that_are_links_are_followed(left, place) -> None:
    left("plain")
    linked, victim = left("linked"), place / "victim"
    (linked / files.LOCK).unlink()
    victim.touch()
    (linked / files.LOCK).symlink_to(victim)
    elsewhere = left("elsewhere").rename(place / "elsewhere")
    (place / "tfperf-test-link").symlink_to(elsewhere)
    pipe = left("pipe")
    (pipe / files.LOCK).unlink()
    os.mkfifo(pipe / files.LOCK)
    with scratch_folder("tfperf-test-") as own:
        assert {path.name for path in place.iterdir()} - {own.name} == {
            "tfperf-test-linked", "victim", "elsewhere", "tfperf-test-link", "tfperf-test-pipe",
        }  # fmt: skip
        assert (elsewhere / files.LOCK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_scratch_folder_of_others_stays(left) -> None:
    folder, lock = left("folder"), left("lock") / files.LOCK
    for path in (folder, lock):
        os.chown(path, 54321, -1)
    with scratch_folder("tfperf-test-"):
        assert folder.exists()
        assert lock.exists()
