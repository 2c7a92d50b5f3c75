"""The kept wheels."""

import errno
import os
import subprocess
import sys

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import wheel_cache
from tfperf.parallel.horovod_build.wheel_cache import find_wheel, has_extension, keep, locked

NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


def test_what_is_kept_is_found_by_its_key(tmp_path, make_wheel):
    wheel = make_wheel(tmp_path / NAME)
    cache = tmp_path / "cache"
    kept = keep(wheel, cache, "key", NAME)
    assert find_wheel(cache, "key") == kept == cache / "key" / NAME
    assert kept.read_bytes() == wheel.read_bytes()
    assert find_wheel(cache, "another") is None


def test_a_broken_or_empty_wheel_is_not_found(tmp_path, make_wheel):
    wheel = make_wheel(tmp_path / "key" / NAME, extension=False)
    assert find_wheel(tmp_path, "key") is None
    wheel.write_bytes(make_wheel(tmp_path / "good.whl").read_bytes()[:100])
    assert not has_extension(wheel)
    assert find_wheel(tmp_path, "key") is None


def test_another_horovod_is_not_found(tmp_path, make_wheel):
    make_wheel(tmp_path / "key" / NAME.replace("0.28.1", "0.29.0"))
    assert find_wheel(tmp_path, "key") is None


def test_half_a_wheel_is_never_there(tmp_path, make_wheel, monkeypatch):
    wheel = make_wheel(tmp_path / NAME)

    def copy(source, target):
        target.write(source.read(10))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheel_cache.shutil, "copyfileobj", copy)
    with pytest.raises(OSError, match="No space left"):
        keep(wheel, tmp_path / "cache", "key", NAME)
    assert list((tmp_path / "cache/key").iterdir()) == []


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(HorovodError, match=r"expected to write to the cache .*set TFPERF_CACHE"),
        locked(tmp_path / "file/cache", print),
    ):
        pass


def test_the_second_waits_for_the_first(tmp_path):
    code = (
        "import pathlib, sys\n"
        "from tfperf.parallel.horovod_build.wheel_cache import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), lambda line: print(line, flush=True)) as waited:\n"
        "    print('in', waited, flush=True)\n"
    )
    with locked(tmp_path, print):
        second = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        try:
            assert "waiting for it" in second.stdout.readline()
            assert second.poll() is None
        except BaseException:
            second.kill()
            raise
    said, _ = second.communicate(timeout=60)
    assert said == "in True\n"
    assert second.returncode == 0


def test_a_lock_that_is_free_makes_no_one_wait(tmp_path):
    said = []
    for _ in range(2):
        with locked(tmp_path / "cache", said.append) as waited:
            assert not waited
    assert said == []
