"""The Debian package without root, against an apt-get and a dpkg-deb that the tests write."""

import os
import tarfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from tfperf.data.debian import _ends, unpack_package
from tfperf.errors import DataError

PACKAGE = "dataset-sample"

# Each is the body of an apt-get: "$@" holds its options and its command.
APT_WITH_LISTS = 'case "$*" in *update*) exit 1;; *) cp "$ARCHIVE" dataset-sample_1_all.deb;; esac'
APT_WITHOUT_LISTS = """\
case "$*" in
    *"Dir::State="*" update") touch "$MARK"; echo list > ../state/lists/list ;;
    *"Dir::State="*" download "*) cp "$ARCHIVE" dataset-sample_1_all.deb ;;
    *) echo "E: Unable to locate package dataset-sample" >&2; exit 100 ;;
esac"""
APT_OFFLINE = """\
case "$*" in
    *update) echo "W: Failed to fetch http://mirror  Temporary failure resolving 'mirror'"; echo "W: Some more" ;;
    *) echo "E: something else"; echo "E: Unable to locate package dataset-sample"; exit 100 ;;
esac"""
APT_HANGS = 'sleep 600 & echo $! >> "$MARK"; echo $$ >> "$MARK"; wait'
DPKG = 'mkdir "$3" && tar -xf "$2" -C "$3"'


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Makes programs that come first on the PATH, and sets ARCHIVE and MARK for them."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (tmp_path / "tree/usr/share").mkdir(parents=True)
    (tmp_path / "tree/usr/share/data").write_text("data")
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        archive.add(tmp_path / "tree/usr", "usr")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "archive.tar"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    def make(apt_get, dpkg_deb=DPKG):
        for name, body in (("apt-get", apt_get), ("dpkg-deb", dpkg_deb)):
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)

    return make


def unpack(target, check=lambda tree: None, **keywords):
    unpack_package(PACKAGE, target, check, **keywords)


def nothing_left(tmp_path):
    return not any((tmp_path / "cache").iterdir()) and not any((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("apt_get", [APT_WITH_LISTS, APT_WITHOUT_LISTS])
def test_the_package_is_unpacked(apt_get, tools, tmp_path):
    tools(apt_get)
    target = tmp_path / "cache/package"
    unpack(target)
    assert (target / "usr/share/data").read_text() == "data"
    assert list((tmp_path / "cache").iterdir()) == [target]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert (tmp_path / "mark").exists() == (apt_get == APT_WITHOUT_LISTS)  # no update without need


def test_apt_s_words_are_told_when_it_fails(tools, tmp_path):
    tools(APT_OFFLINE)
    with pytest.raises(DataError) as caught:
        unpack(tmp_path / "cache/package")
    assert str(caught.value) == (
        "Debian's package dataset-sample cannot be downloaded: E: Unable to locate package dataset-sample "
        "(apt-get update ended with: W: Failed to fetch http://mirror  Temporary failure resolving 'mirror')"
    )
    assert nothing_left(tmp_path)


def test_apt_that_hangs_is_killed_with_its_children(tools, tmp_path):
    tools(APT_HANGS)
    with pytest.raises(DataError, match="no Debian mirror answers"):
        unpack(tmp_path / "cache/package", answer_s=1.0)
    numbers = [int(number) for number in (tmp_path / "mark").read_text().split()]
    assert len(numbers) >= 2
    patience = time.monotonic() + 10  # a killed process takes a moment to go
    while any(runs(number) for number in numbers):
        assert time.monotonic() < patience, f"one of {numbers} still runs"
    assert nothing_left(tmp_path)


def runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class SlowProcess:
    """Ends after `seconds` of a clock that only its own waiting moves; `sizes` says what it has written when."""

    def __init__(self, data, seconds, sizes):
        self.now = 0.0
        self._data, self._seconds, self._sizes = data, seconds, sizes

    def wait(self, timeout):
        self.now += 1.0
        for second, size in self._sizes.items():
            if second <= self.now:
                (self._data / "file").write_bytes(bytes(size))
        if self.now < self._seconds:
            raise TimeoutError


@pytest.mark.parametrize(
    ("seconds", "sizes", "ends"),
    [
        (4, {}, True),
        (9, {}, False),  # no first byte within 5 s
        (9, {4: 0}, False),  # an empty file is no byte
        (9, {4: 1}, True),  # the first byte came, so it may go on
        (60, {4: 1, 30: 2, 55: 3}, True),  # it goes on sending
        (60, {4: 1}, False),  # it stopped sending for more than 30 s
    ],
)
def test_apt_is_waited_for_as_long_as_bytes_come(seconds, sizes, ends, tmp_path):
    process = SlowProcess(tmp_path, seconds, sizes)
    assert _ends(process, tmp_path, answer_by=5.0, clock=lambda: process.now) is ends


def test_apt_without_an_archive_is_an_error(tools, tmp_path):
    tools("exit 0")
    with pytest.raises(DataError, match=r"expected one \.deb file .* found 0"):
        unpack(tmp_path / "cache/package")


def test_dpkg_s_words_are_told_when_it_fails(tools, tmp_path):
    tools(APT_WITH_LISTS, "echo 'first'; echo 'not a Debian archive' >&2; exit 2")
    with pytest.raises(DataError, match=r"dpkg-deb cannot unpack dataset-sample_1_all\.deb: not a Debian"):
        unpack(tmp_path / "cache/package")
    assert nothing_left(tmp_path)


def test_what_the_check_refuses_gets_no_name(tools, tmp_path):
    tools(APT_WITH_LISTS)

    def refuse(tree: Path):
        assert (tree / "usr/share/data").read_text() == "data"
        raise DataError("not this one")

    with pytest.raises(DataError, match="not this one"):
        unpack(tmp_path / "cache/package", refuse)
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("there", ["apt-get", "dpkg-deb"])
def test_no_debian_is_told(there, tools, tmp_path, monkeypatch):
    tools(APT_WITH_LISTS)
    (tmp_path / "tools" / ({"apt-get", "dpkg-deb"} - {there}).pop()).unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    with pytest.raises(DataError, match="is not on the PATH"):
        unpack(tmp_path / "cache/package")


def test_a_cache_that_cannot_be_written_is_told(tools, tmp_path):
    tools(APT_WITH_LISTS)
    (tmp_path / "cache").touch()
    with pytest.raises(DataError, match=r"cannot be made: .*; set TFPERF_CACHE"):
        unpack(tmp_path / "cache/package")


def test_several_at_once_end_with_one_whole_tree(tools, tmp_path):
    tools(APT_WITH_LISTS)
    target = tmp_path / "cache/package"
    barrier = threading.Barrier(3)  # all have unpacked before the first renames
    problems = []

    def work():
        try:
            unpack(target, lambda tree: barrier.wait(30))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert (target / "usr/share/data").read_text() == "data"
    assert list((tmp_path / "cache").iterdir()) == [target]


def test_a_target_with_something_in_it_is_left_alone(tools, tmp_path):
    tools(APT_WITH_LISTS)
    target = tmp_path / "cache/package"
    target.mkdir(parents=True)
    (target / "mine").touch()
    unpack(target)
    assert [path.name for path in target.iterdir()] == ["mine"]
