"""The build, with a pip that only plays one; the headers it is given; the wheels that are kept."""

import dataclasses
import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfperf.errors import HorovodError
from tfperf.files import writing_whole
from tfperf.parallel.horovod_build import building
from tfperf.parallel.horovod_build.building import (
    MOVED,
    SHA256,
    build,
    find_wheel,
    has_extension,
    include_folders,
    keep,
    locked,
    write_forwarding_headers,
)
from tfperf.parallel.horovod_build.requirements import Nccl, find_tensorflow

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


def test_what_would_make_it_another_build_is_not_inherited(fake_pip, plan, tmp_path, monkeypatch):
    names = ["HOROVOD_SKIP_COMPILE", "HOROVOD_WITHOUT_GLOO", "HOROVOD_WITH_MPI", "CMAKE_GENERATOR", "PIP_TARGET"]
    for name in names:
        monkeypatch.setenv(name, "1")
    fake_pip(f"print('inherited', *[name for name in {names} if name in os.environ])\n" + BUILDS)
    lines = []
    build(plan, tmp_path / "cache", 2, lines.append)
    assert [line for line in lines if line.startswith("inherited")] == ["inherited"] * 2  # the tools', and Horovod's


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

    monkeypatch.setattr("tfperf.parallel.horovod_build.building.writing_whole", full)
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


def forwarded(folder):
    """Header that Horovod includes -> the lines of the one that stands for it."""
    return {
        path.relative_to(folder / "tensorflow/compiler/xla").as_posix(): path.read_text().splitlines()
        for path in folder.rglob("*.h")
    }


def test_every_header_is_in_the_real_tensorflow_or_leads_to_one_that_is(tmp_path):
    tensorflow = find_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path, gpu=False)
    headers = forwarded(tmp_path)
    for name in MOVED:
        there = (tensorflow.include / "tensorflow/compiler/xla" / name).is_file()
        assert there != (name in headers), name
    for first, *_ in headers.values():
        assert (tensorflow.include / first.removeprefix('#include "').removesuffix('"')).is_file()
    assert list(headers) == ["client/xla_builder.h"], "of TensorFlow 2.21 it is this one"
    assert len(include_folders(tensorflow)) == 2


def test_what_tensorflow_lacks_is_forwarded(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)
    headers = forwarded(tmp_path / "forwarding")
    assert set(headers) == set(MOVED)
    assert headers["shape.h"] == ['#include "xla/shape.h"']
    assert headers["client/xla_builder.h"][0] == '#include "xla/hlo/builder/xla_builder.h"'


def test_the_name_status_or_is_given_back_where_its_header_is_gone(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path / "without", gpu=False)
    assert "using StatusOr" in forwarded(tmp_path / "without")["client/xla_builder.h"][-1]
    (tensorflow.include / "xla/statusor.h").write_text("")
    write_forwarding_headers(tensorflow, tmp_path / "with", gpu=False)
    assert len(forwarded(tmp_path / "with")["client/xla_builder.h"]) == 1


def test_a_build_for_gpus_gets_the_function_that_tensorflow_lost(tmp_path):
    tensorflow = find_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path, gpu=True)
    lines = forwarded(tmp_path)["stream_executor/stream.h"]
    assert any("AsGpuStreamValue(Stream* stream)" in line for line in lines)
    header = (tensorflow.include / "xla/stream_executor/stream.h").read_text()
    assert "platform_specific_handle() const" in header, "what the function is made of"


def test_an_older_place_is_found_too(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow("2.18.1", without=["hlo/builder/xla_builder.h"])
    older = tensorflow.include / "xla/client/xla_builder.h"
    older.parent.mkdir(parents=True)
    older.write_text("")
    write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)
    headers = forwarded(tmp_path / "forwarding")
    assert headers["client/xla_builder.h"][0] == '#include "xla/client/xla_builder.h"'


def test_a_tensorflow_that_moved_one_again_is_unfit(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow("2.30.0", without=["shape.h"])
    with pytest.raises(
        HorovodError, match=r"expected xla/shape\.h .*tensorflow 2\.30\.0 has none.*use TensorFlow 2\.21"
    ):
        write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)


def test_folders_that_a_version_has_not_are_left_out(fake_tensorflow):
    tensorflow = fake_tensorflow()
    (tensorflow.include / "external/highwayhash").rmdir()
    assert [folder.name for folder in include_folders(tensorflow)] == ["src"]


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

    monkeypatch.setattr(building.shutil, "copyfileobj", copy)
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
        "from tfperf.parallel.horovod_build.building import locked\n"
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
