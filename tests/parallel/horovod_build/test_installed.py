"""What the installed Horovod is, the real one and written ones; the two ranks, when their launcher fails."""

import json
import subprocess
import sys
import sysconfig
import time
from importlib import metadata

import psutil
import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import installed, loading
from tfperf.parallel.horovod_build.installed import Allreduce, allreduce_on_two_ranks, find_horovod
from tfperf.parallel.horovod_build.requirements import find_tensorflow

ANSWERS = dict.fromkeys(loading.OPERATIONS, 0)


def test_the_real_one_works_here_and_neither_it_nor_tensorflow_is_imported():
    code = (
        "import sys, tfperf.parallel.horovod_build as room\n"
        "horovod = room.find_horovod()\n"
        "print(horovod, horovod.problem, {'tensorflow', 'keras', 'horovod'} & sys.modules.keys(), sep='; ')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    words, problem, imported = done.stdout.rstrip().split("; ")
    assert words.startswith(f"Horovod 0.28.1 for TensorFlow {metadata.version('tensorflow')} with gloo")
    assert (problem, imported) == ("None", "set()")


@pytest.fixture(scope="module")
def tensorflow():
    """The real one."""
    return find_tensorflow()


@pytest.fixture
def write_horovod(tensorflow, tmp_path, monkeypatch):
    """A function that writes an installed Horovod into an environment with the real TensorFlow beside it.

    Its extension is a file of text. What loading it would give is given: answers, or None to load it really.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(installed, "find_tensorflow", lambda: tensorflow)

    def write(answers=None, built_for=tensorflow.version, url=None, extension=True, version="0.28.1"):
        information = tmp_path / f"horovod-{version}.dist-info"
        (tmp_path / "horovod/tensorflow").mkdir(parents=True)
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: horovod\nVersion: {version}\n")
        if url is not None:
            (information / "direct_url.json").write_text(url)
        if built_for is not None:
            (tmp_path / "horovod/metadata.json").write_text(json.dumps({"tensorflow": built_for, "dummy": "none"}))
        suffix = sysconfig.get_config_var("EXT_SUFFIX") if extension is True else extension
        if suffix:
            (tmp_path / f"horovod/tensorflow/mpi_lib{suffix}").write_text("not a library")
        if answers is not None:
            monkeypatch.setattr(installed, "_load", lambda *_: (ANSWERS | answers, None))

    return write


def test_none_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_horovod() is None


def test_what_it_was_built_with_is_told(write_horovod):
    write_horovod({"gloo": 1, "mpi": 1, "nccl": 22703, "cuda": 1})
    horovod = find_horovod()
    assert horovod.built_with == ("gloo", "mpi", "nccl", "cuda")
    assert horovod.nccl == "2.27.3"
    assert horovod.mpi is None
    assert horovod.problem is None


def test_which_mpi_it_loads_is_told(write_horovod):
    write_horovod({"gloo": 1, "mpi": 1, "mpi_version": "MPICH Version: 5.0.2"})
    horovod = find_horovod()
    assert horovod.mpi == "MPICH Version: 5.0.2"
    assert horovod.built_with == ("gloo", "mpi")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (b"MPICH Version:      5.0.2\nMPICH Release date: today", "MPICH Version: 5.0.2"),
        (b"Open MPI v5.0.11, package: Open MPI me@here", "Open MPI v5.0.11"),
    ],
)
def test_an_mpi_s_name_is_the_first_that_it_says(said, version):
    class Extension:
        @staticmethod
        def MPI_Get_library_version(buffer, length):  # noqa: N802 - MPI's name for it
            buffer.value = said

    assert loading.mpi_version(Extension()) == version


def test_one_for_another_tensorflow_is_a_problem(write_horovod):
    write_horovod({"gloo": 1}, built_for="2.20.0")
    here = installed.find_tensorflow().version
    assert find_horovod().problem == f"it was built for TensorFlow 2.20.0, not {here}"


def test_one_that_does_not_say_what_for_is_a_problem(write_horovod):
    write_horovod({"gloo": 1}, built_for=None)
    assert "of unknown version" in find_horovod().problem


def test_a_release_candidate_is_spelled_in_two_ways(write_horovod, monkeypatch):
    write_horovod({"gloo": 1}, built_for="2.22.0-rc1")
    found = installed.find_tensorflow()
    monkeypatch.setattr(installed, "find_tensorflow", lambda: type(found)("tensorflow", "2.22.0rc1", found.folder))
    assert find_horovod().problem is None


@pytest.mark.parametrize("extension", [None, ".cpython-39-x86_64-linux-gnu.so"])
def test_one_without_an_extension_for_this_python_is_a_problem(write_horovod, extension):
    write_horovod({"gloo": 1}, extension=extension)
    assert "it was built without TensorFlow, or for another Python" in find_horovod().problem


def test_one_whose_extension_does_not_load_is_a_problem(write_horovod):
    write_horovod()
    problem = find_horovod().problem
    assert problem.startswith("its extension does not load beside TensorFlow ")
    assert "mpi_lib" in problem
    assert "\n" not in problem


def test_one_without_tensorflow_is_a_problem(write_horovod, monkeypatch):
    write_horovod({"gloo": 1})
    monkeypatch.setattr(installed, "find_tensorflow", lambda: None)
    assert find_horovod().problem == "TensorFlow is not installed"


@pytest.mark.parametrize(
    ("url", "key"),
    [
        (None, None),
        ("not json", None),
        ('{"url": "https://somewhere/horovod-0.28.1.whl"}', None),
        ('{"url": "file:///home/me/horovod-0.28.1.whl"}', None),
        ('{"url": "file:///c/horovod-0.28.1_tensorflow-2.21.0_a%2Bb/horovod-0.28.1.whl"}',
         "horovod-0.28.1_tensorflow-2.21.0_a+b"),
        ('{"url": "file:///c/horovod-0.27.0_tensorflow-2.21.0/horovod-0.28.1.whl"}', None),
    ],
)  # fmt: skip
def test_the_key_is_read_from_where_pip_took_the_wheel(write_horovod, url, key):
    write_horovod({"gloo": 1}, url=url)
    assert find_horovod().key == key


def test_a_current_folder_named_horovod_is_not_taken_for_it(write_horovod, tmp_path, monkeypatch):
    write_horovod({"gloo": 1})
    (tmp_path / "elsewhere/horovod").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
    assert find_horovod().problem is None


GOOD = '{"size": 2, "least": 3.0, "greatest": 3.0, "seconds": [0.01, 0.02]}'


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A function that makes `sys.executable -m tfperf launch` a shell script; $result is the file it has to write."""

    def make(body):
        stub = tmp_path / "python"
        stub.write_text(f"#!/bin/sh\nfor result; do :; done\n{body}\n")
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))

    return make


def test_the_sum_and_the_times_come_back(launcher):
    launcher(f"echo '{GOOD}' > $result")
    assert allreduce_on_two_ranks() == Allreduce(3.0, (0.01, 0.02))


@pytest.mark.parametrize(("mpi", "times"), [(False, 0), (True, 1)])
def test_the_launcher_is_told_to_use_mpi_when_asked(launcher, tmp_path, mpi, times):
    launcher(f"echo \"$@\" > {tmp_path}/arguments; echo '{GOOD}' > $result")
    allreduce_on_two_ranks(mpi=mpi)
    launched, _ = (tmp_path / "arguments").read_text().split(" -- ")
    assert launched.split().count("--mpi") == times


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo; echo 'ImportError: no such thing'; echo 'rank 0 ended with 1'; exit 1", "failed: ImportError: no such"),
        ("echo 'rank 0 ended with 1' >&2; exit 1", "the two ranks failed: rank 0 ended with 1"),
        ("exit 3", "the two ranks failed: exit code 3"),
        ("exit 0", "without an error and without a result"),
        ("echo half > $result", "without an error and without a result"),
        (f"echo '{GOOD.replace('2,', '1,')}' > $result", "expected 2 ranks .* found a world of 1"),
        (f"echo '{GOOD.replace('3.0', '2.0', 1)}' > $result", "expected the sum 3.0, found 2.0 to 3.0"),
        (f"echo '{GOOD.replace('3.0', '1.0')}' > $result", "expected the sum 3.0, found 1.0 to 1.0"),
    ],
)
def test_what_goes_wrong_is_one_line(launcher, body, words):
    launcher(body)
    with pytest.raises(HorovodError, match=words):
        allreduce_on_two_ranks()


def test_ranks_that_hang_are_ended(launcher, tmp_path):
    launcher(f"trap '' TERM\nsleep 600 &\necho $$ $! > {tmp_path}/numbers\nwait\nwait")
    with pytest.raises(HorovodError, match="did not end within 1 s"):
        allreduce_on_two_ranks(deadline_s=1.0)
    numbers = [int(word) for word in (tmp_path / "numbers").read_text().split()]
    patience = time.monotonic() + 20
    while any(psutil.pid_exists(number) and _runs(number) for number in numbers):
        assert time.monotonic() < patience, f"one of {numbers} still runs"
        time.sleep(0.05)


def _runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
