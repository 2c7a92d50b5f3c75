"""tfperf's own cache is where the user's environment says, this user's alone, and no larger than it may be."""

import os
import pwd
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfperf import caching
from tfperf.caching import (
    Uses,
    cache_bound,
    cache_bytes,
    cache_folder,
    cache_place,
    keep_within_bound,
    remove_given_up,
)
from tfperf.errors import CacheError
from tfperf.search.journal import Journal
from tfperf.trials.trial import Trial

OWN = "set TFPERF_CACHE to a folder of your own"


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("TFPERF_CACHE", "TFPERF_CACHE_GIB", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache(home):
    return home / ".cache" / "tfperf"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------- the place


def test_own_cache_follows_the_environment(home, monkeypatch):
    assert cache_place() == home / ".cache/tfperf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_place() == home / ".cache/tfperf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_place() == home / "xdg/tfperf"
    monkeypatch.setenv("TFPERF_CACHE", "")
    assert cache_place() == home / "xdg/tfperf"
    monkeypatch.setenv("TFPERF_CACHE", "~/mine")
    assert cache_place() == home / "mine"
    monkeypatch.setenv("TFPERF_CACHE", "~")
    assert cache_place() == home
    monkeypatch.chdir(home)
    monkeypatch.setenv("TFPERF_CACHE", "here")
    assert cache_place() == home / "here"
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("named", [None, "", "relative"])
def test_without_home_it_is_in_the_home_that_the_system_knows(named, home, monkeypatch):
    monkeypatch.delenv("HOME") if named is None else monkeypatch.setenv("HOME", named)
    known = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd((*known[:5], str(home), known[6])))
    assert cache_place() == home / ".cache/tfperf"
    monkeypatch.setenv("TFPERF_CACHE", "~/mine")
    assert cache_place() == home / "mine"


@pytest.mark.parametrize("folder", [None, "/nonexistent", ""])
def test_without_any_home_it_is_refused_and_nothing_is_made(folder, home, monkeypatch):
    def getpwuid(uid):
        if folder is None:
            raise KeyError(uid)
        return pwd.struct_passwd(("nobody", "x", uid, uid, "", folder, ""))

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(home)
    for own in ("", "~/mine"):
        monkeypatch.setenv("TFPERF_CACHE", own)
        with pytest.raises(CacheError, match=f"^expected a home folder for the cache; {OWN}$"):
            cache_folder()
    assert list(home.iterdir()) == []
    monkeypatch.setenv("TFPERF_CACHE", str(home / "own"))
    assert cache_folder() == home / "own"


# ---------------------------------------------------------------- whose it is


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_it_is_made_for_this_user_alone(umask, cache):
    before = os.umask(umask)
    try:
        assert cache_folder("native") == cache / "native"
    finally:
        os.umask(before)
    assert mode(cache) == mode(cache / "native") == 0o700
    assert cache_folder() == cache


@pytest.mark.parametrize("room", ["", "native"])
@pytest.mark.parametrize("others", [0o020, 0o002, 0o1022])
def test_what_others_may_write_is_refused(others, room, cache):
    cache_folder("native")
    cache.chmod(0o755)
    (cache / room).chmod(0o755 | others)
    with pytest.raises(CacheError) as refused:
        cache_folder("engines")
    assert f"expected the cache {cache / room} to be written by nobody else" in str(refused.value)
    assert f"chmod -R go-w {cache}" in str(refused.value)
    assert str(refused.value).endswith(OWN)
    (cache / room).chmod(0o755)
    assert cache_folder("engines") == cache / "engines"


def test_what_others_cannot_get_to_they_cannot_write(cache):
    cache_folder("native").chmod(0o777)
    assert cache_folder("native") == cache / "native"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
@pytest.mark.parametrize("room", ["", "native"])
def test_what_belongs_to_another_user_is_refused(room, cache):
    cache_folder("native")
    os.chown(cache / room, 54321, -1)
    with pytest.raises(CacheError, match=rf"; it is of user 54321: chown -R .* {cache} .*, or {OWN}$"):
        cache_folder()
    os.chown(cache / room, 0, -1)
    assert cache_folder() == cache


def test_what_cannot_be_made_is_one_line(home, cache, monkeypatch):
    cache.parent.write_text("no folder")
    with pytest.raises(CacheError, match=f"^expected to write to the cache {cache}: .*; {OWN}$"):
        cache_folder()


# ---------------------------------------------------------------- what was left half written

WRITES = """
import signal, sys
from pathlib import Path
from tfperf.files import writing_folder_once
with writing_folder_once(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print(folder.parent, flush=True)
    signal.pause()
"""


def test_parts_of_killed_processes_go_and_those_of_others_stay(cache, monkeypatch):
    room = cache_folder("engines")
    monkeypatch.setattr("tfperf.files.GRACE", -1.0)
    command = [sys.executable, "-c", WRITES, str(room / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            part = Path(process.stdout.readline().strip())
            cache_folder()
            assert (part / "new" / "half").exists()
        finally:
            process.kill()
    cache_folder()
    assert list(room.iterdir()) == []


# ---------------------------------------------------------------- how large it is


@pytest.fixture
def filled(cache, monkeypatch):
    """A folder of the cache with a, b and c of 1,000 bytes, used in this order; the bound is 2,500 bytes."""
    room = cache_folder("engines")
    monkeypatch.setenv("TFPERF_CACHE_GIB", str(2500 / caching.GIB))
    for days, name in enumerate("cba", start=1):
        (room / name / "deep").mkdir(parents=True)
        (room / name / "deep" / "file").write_bytes(b"x" * 1000)
        os.utime(room / name, (0, time.time() - days * 86400))
    return room


def names(room):
    return sorted(path.name for path in room.iterdir())


def test_what_was_used_longest_ago_goes_first(filled, monkeypatch):
    keep_within_bound(filled)
    assert names(filled) == ["b", "c"]
    assert Uses().take(filled / "b")
    monkeypatch.setenv("TFPERF_CACHE_GIB", str(1500 / caching.GIB))
    keep_within_bound(filled)
    assert names(filled) == ["b"]
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0")
    keep_within_bound(filled)
    assert names(filled) == ["b"]  # it was used a moment ago
    monkeypatch.setattr(caching, "LATELY", -1.0)
    keep_within_bound(filled)
    assert names(filled) == []


def test_what_other_folders_of_the_cache_take_counts_and_stays(filled):
    (filled.parent / "horovod").mkdir()
    (filled.parent / "horovod" / "wheel").write_bytes(b"x" * 1400)
    keep_within_bound(filled)
    assert names(filled) == ["c"]
    assert cache_bytes(filled.parent) == 2400


def days_ago(path, days):
    os.utime(path, (0, time.time() - days * 86400))


@pytest.fixture
def journals(filled):
    """Journals of 1,000 bytes beside `filled`; they and their locks were last written so many days ago."""
    folder = cache_folder("tune")
    ages = {"old": (31, 31), "written": (29, 31), "locked": (31, 29), "held": (31, 31)}
    for name in ages:
        journal = Journal(folder / name, Trial)
        with journal.held():
            (journal.folder / "trial-a.json").write_bytes(b"x" * 1000)
    for name, (days, lock_days) in ages.items():
        days_ago(folder / name, days)
        days_ago(folder / f"{name}.lock", lock_days)
    return folder


def test_journals_of_searches_that_nobody_goes_on_with_go_and_the_one_that_is_gone_on_with_stays(journals):
    (journals / "alone.lock").touch()
    days_ago(journals / "alone.lock", 31)
    (journals / "unlocked").mkdir()
    days_ago(journals / "unlocked", 31)
    with Journal(journals / "held", Trial).held():
        days_ago(journals / "held.lock", 31)
        remove_given_up(journals)
        assert names(journals) == ["held", "held.lock", "locked", "locked.lock", "written", "written.lock"]
    with Journal(journals / "locked", Trial).held():
        assert names(journals) == ["locked", "locked.lock", "written", "written.lock"]


USES = """
import sys
from pathlib import Path
from tfperf.caching import Uses
uses = Uses()
print(uses.take(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_what_is_in_use_stays_until_its_process_ends(filled, monkeypatch):
    monkeypatch.setattr(caching, "LATELY", -1.0)
    command = [sys.executable, "-c", USES, str(filled / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "True\n"
            os.utime(filled / "a", (0, 0))
            keep_within_bound(filled)
            assert names(filled) == ["a", "c"]
        finally:
            process.kill()
    monkeypatch.setenv("TFPERF_CACHE_GIB", str(1500 / caching.GIB))
    keep_within_bound(filled)
    assert names(filled) == ["c"]


def test_a_use_ends_with_its_owner(filled, monkeypatch):
    monkeypatch.setattr(caching, "LATELY", -1.0)
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0")
    uses = Uses()
    assert uses.take(filled / "a")
    assert uses.take(filled / "a")
    assert not uses.take(filled / "none")
    keep_within_bound(filled)
    assert names(filled) == ["a"]
    assert uses.take(filled / "a")
    del uses
    keep_within_bound(filled)
    assert names(filled) == []


def test_what_others_could_change_is_not_used(filled):
    (filled / "a").chmod(0o775)
    with pytest.raises(CacheError, match=f"^expected the cache {filled / 'a'} to be written by nobody else"):
        Uses().take(filled / "a")
    (filled / "link").symlink_to(filled / "b")
    assert not Uses().take(filled / "link")


def test_the_bound_is_some_gib_unless_the_environment_says_so(home, monkeypatch):
    assert cache_bound() == 8 * 2**30
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0.5")
    assert cache_bound() == 2**29
    for named in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("TFPERF_CACHE_GIB", named)
        with pytest.raises(CacheError, match=f"^expected TFPERF_CACHE_GIB .* Received: '{named}'$"):
            cache_bound()


def test_what_is_not_there_has_no_size(cache):
    assert cache_bytes(cache) == 0
