"""The build, with a pip that only plays one."""

import dataclasses
import os
import re
import shutil
from pathlib import Path

import pytest

from tfperf.errors import HorovodError
from tfperf.files import writing_whole
from tfperf.parallel.horovod_build import building
from tfperf.parallel.horovod_build.building import SHA256, build
from tfperf.parallel.horovod_build.headers import MOVED
from tfperf.parallel.horovod_build.libraries import Nccl
from tfperf.parallel.horovod_build.wheel_cache import find_wheel

NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
INSTALLS = "if arguments[0] == 'install':\n    print('tools are there')\n    sys.exit()\n"
BUILDS = INSTALLS + (
    "print('[ 50%] Building CXX object x/mpi_ops.cc.o')\n"
    "os.mkdir(argument('--wheel-dir'))\n"
    "with zipfile.ZipFile(argument('--wheel-dir') + '/" + NAME + "', 'w') as wheel:\n"
    "    wheel.writestr('horovod/tensorflow/mpi_lib.so', os.environ['CXXFLAGS'])\n"
    "pathlib.Path(os.environ['SEEN']).write_text(open(argument('--requirement')).read())\n"
)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Where the build writes: below tmp_path, so that what it leaves is seen."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))


def nothing_is_left(tmp_path):
    return list((tmp_path / "temporary").iterdir()) == []


def test_the_wheel_and_the_log_are_kept(fake_pip, plan, tmp_path):
    calls, lines = fake_pip(BUILDS), []
    wheel = build(plan, tmp_path / "cache", 2, lines.append)
    assert wheel == find_wheel(tmp_path / "cache", plan.key) == tmp_path / "cache" / plan.key / NAME
    assert {path.name for path in wheel.parent.iterdir()} == {NAME, "build.log"}
    assert (wheel.parent / "build.log").read_text().splitlines() == lines
    assert "[ 50%] Building CXX object x/mpi_ops.cc.o" in lines
    assert nothing_is_left(tmp_path)
    install, wheel_call = calls.read_text().splitlines()
    assert re.match(r"install --target \S+ setuptools>=70,<81 wheel cmake\S+<4 ", install)
    for option in ("--no-cache-dir", "--no-deps", "--no-build-isolation", "--require-hashes", "--no-binary=horovod"):
        assert option in wheel_call.split()


def test_the_source_is_pinned_by_its_hash(fake_pip, plan, tmp_path):
    fake_pip(BUILDS)
    build(plan, tmp_path / "cache", 2, print)
    assert (tmp_path / "seen").read_text() == f"horovod==0.28.1 --hash=sha256:{SHA256}\n"


def test_the_forwarding_headers_are_on_the_path_during_the_build(fake_pip, plan, tmp_path):
    fake_pip(
        BUILDS + "folder = os.environ['CXXFLAGS'].split()[0].removeprefix('-iquote')\n"
        "print(*sorted(path.relative_to(folder) for path in pathlib.Path(folder).rglob('*.h')))\n"
    )
    lines = []
    build(plan, tmp_path / "cache", 2, lines.append)
    assert lines[-1].split() == sorted(f"tensorflow/compiler/xla/{name}" for name in MOVED)


def test_everything_temporary_lies_in_one_folder(fake_pip, plan, tmp_path):
    fake_pip(BUILDS + "print(os.environ['TMPDIR'])\n")
    lines = []
    build(plan, tmp_path / "cache", 2, lines.append)
    assert Path(lines[-1]).parents[1] == tmp_path / "temporary"


def test_a_compiler_s_error_is_one_line_with_the_place_of_the_log(fake_pip, plan, tmp_path):
    fake_pip(INSTALLS + "print('/tmp/y/mpi_ops.cc:1:2: error: no such thing')\nprint('ERROR: Failed')\nsys.exit(1)\n")
    log = tmp_path / "cache" / plan.key / "build.log"
    with pytest.raises(HorovodError) as caught:
        build(plan, tmp_path / "cache", 2, print)
    assert str(caught.value) == (
        f"Horovod 0.28.1 did not build: mpi_ops.cc:1:2: error: no such thing; the whole log is {log}"
    )
    assert "ERROR: Failed" in log.read_text()
    assert find_wheel(tmp_path / "cache", plan.key) is None
    assert nothing_is_left(tmp_path)


def test_a_build_that_fails_leaves_the_kept_wheel(fake_pip, plan, tmp_path, make_wheel):
    kept = make_wheel(tmp_path / "cache" / plan.key / NAME)
    fake_pip(INSTALLS + "sys.exit(1)\n")
    with pytest.raises(HorovodError):
        build(plan, tmp_path / "cache", 2, print)
    assert find_wheel(tmp_path / "cache", plan.key) == kept


def test_tools_that_cannot_be_had_are_told(fake_pip, plan, tmp_path):
    calls = fake_pip("print('ERROR: No matching distribution found for cmake<4')\nsys.exit(1)\n")
    with pytest.raises(HorovodError, match="tools that build Horovod: ERROR: No matching distribution found for cmake"):
        build(plan, tmp_path / "cache", 2, print)
    assert len(calls.read_text().splitlines()) == 1


def test_a_wheel_without_the_extension_is_not_kept(fake_pip, plan, tmp_path):
    fake_pip(BUILDS.replace("horovod/tensorflow/mpi_lib.so", "horovod/torch/mpi_lib.so"))
    with pytest.raises(HorovodError, match="made a wheel without its TensorFlow extension"):
        build(plan, tmp_path / "cache", 2, print)
    assert find_wheel(tmp_path / "cache", plan.key) is None


def test_ctrl_c_leaves_nothing(fake_pip, plan, tmp_path):
    fake_pip(BUILDS.replace("os.mkdir", "import time; print('now', flush=True); time.sleep(600); os.mkdir"))

    def on_line(line):
        if line == "now":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(plan, tmp_path / "cache", 2, on_line)
    assert nothing_is_left(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_too_little_room_is_told_before_the_build(fake_pip, plan, tmp_path, monkeypatch):
    calls = fake_pip(BUILDS)
    usage = shutil.disk_usage(tmp_path)._replace(free=2**29)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(HorovodError, match=r"expected 1 GiB free .*found 0\.5; make room, or set TMPDIR"):
        build(plan, tmp_path / "cache", 2, print)
    assert not calls.exists()


def test_a_temporary_folder_with_spaces_is_refused(fake_pip, plan, tmp_path, monkeypatch):
    (tmp_path / "my temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "my temporary"))
    with pytest.raises(HorovodError, match=r"temporary folder without spaces .*set TMPDIR"):
        build(plan, tmp_path / "cache", 2, print)


def test_a_full_disk_at_the_end_leaves_no_wheel(fake_pip, plan, tmp_path, monkeypatch):
    fake_pip(BUILDS)

    def full(path):
        if path.suffix == ".whl":
            raise OSError(28, os.strerror(28))
        return writing_whole(path)

    monkeypatch.setattr("tfperf.parallel.horovod_build.wheel_cache.writing_whole", full)
    with pytest.raises(OSError, match="No space left"):
        build(plan, tmp_path / "cache", 2, print)
    assert find_wheel(tmp_path / "cache", plan.key) is None
    assert nothing_is_left(tmp_path)


def test_nccl_of_pip_gets_a_name_that_cmake_finds(fake_pip, plan, tmp_path):
    library = Path("/site/nvidia/nccl/lib/libnccl.so.2")
    nccl = Nccl("2.27.3", library.parents[1] / "include", library, True, "12.9", Path("/usr/local/cuda"))
    fake_pip(BUILDS + "print(pathlib.Path(os.environ['HOROVOD_NCCL_LIB'], 'libnccl_static.a').read_text())\n")
    lines = []
    build(dataclasses.replace(plan, nccl=nccl), tmp_path / "cache", 2, lines.append)
    assert f"INPUT({library})" in lines
