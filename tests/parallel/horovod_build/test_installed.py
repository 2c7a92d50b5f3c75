"""What the installed Horovod is: the real one, and some that the tests write."""

import json
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from tfperf.parallel.horovod_build import installed, loading
from tfperf.parallel.horovod_build.tensorflow_here import find_tensorflow

room = sys.modules["tfperf.parallel.horovod_build.installed"]

ANSWERS = dict.fromkeys(loading.OPERATIONS, 0)


def test_the_real_one_works_here():
    horovod = installed()
    assert horovod.problem is None
    assert horovod.version == "0.28.1"
    assert horovod.tensorflow == metadata.version("tensorflow")
    assert "gloo" in horovod.built_with
    assert str(horovod).startswith(f"Horovod 0.28.1 for TensorFlow {horovod.tensorflow} with gloo")


@pytest.fixture
def write_horovod(tmp_path, monkeypatch):
    """A function that writes an installed Horovod into an environment with the real TensorFlow beside it.

    Its extension is a file of text. What loading it would give is given: answers, or None to load it really.
    """
    tensorflow = find_tensorflow()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(room, "find_tensorflow", lambda: tensorflow)

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
            monkeypatch.setattr(room, "_load", lambda *_: (ANSWERS | answers, None))

    return write


def test_none_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed() is None


def test_what_it_was_built_with_is_told(write_horovod):
    write_horovod({"gloo": 1, "mpi": 1, "nccl": 22703, "cuda": 1})
    horovod = installed()
    assert horovod.built_with == ("gloo", "mpi", "nccl", "cuda")
    assert horovod.nccl == "2.27.3"
    assert horovod.mpi is None
    assert horovod.problem is None


def test_which_mpi_it_loads_is_told(write_horovod):
    write_horovod({"gloo": 1, "mpi": 1, "mpi_version": "MPICH Version: 5.0.2"})
    horovod = installed()
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
    here = room.find_tensorflow().version
    assert installed().problem == f"it was built for TensorFlow 2.20.0, not {here}"


def test_one_that_does_not_say_what_for_is_a_problem(write_horovod):
    write_horovod({"gloo": 1}, built_for=None)
    assert "of unknown version" in installed().problem


def test_a_release_candidate_is_spelled_in_two_ways(write_horovod, monkeypatch):
    write_horovod({"gloo": 1}, built_for="2.22.0-rc1")
    found = room.find_tensorflow()
    monkeypatch.setattr(room, "find_tensorflow", lambda: type(found)("tensorflow", "2.22.0rc1", found.folder))
    assert installed().problem is None


@pytest.mark.parametrize("extension", [None, ".cpython-39-x86_64-linux-gnu.so"])
def test_one_without_an_extension_for_this_python_is_a_problem(write_horovod, extension):
    write_horovod({"gloo": 1}, extension=extension)
    assert "it was built without TensorFlow, or for another Python" in installed().problem


def test_one_whose_extension_does_not_load_is_a_problem(write_horovod):
    write_horovod()
    problem = installed().problem
    assert problem.startswith("its extension does not load beside TensorFlow ")
    assert "mpi_lib" in problem
    assert "\n" not in problem


def test_one_without_tensorflow_is_a_problem(write_horovod, monkeypatch):
    write_horovod({"gloo": 1})
    monkeypatch.setattr(room, "find_tensorflow", lambda: None)
    assert installed().problem == "TensorFlow is not installed"


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
    assert installed().key == key


def test_a_current_folder_named_horovod_is_not_taken_for_it(write_horovod, tmp_path, monkeypatch):
    write_horovod({"gloo": 1})
    (tmp_path / "elsewhere/horovod").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
    assert installed().problem is None


def test_loading_says_what_the_real_extension_says(capsys):
    tensorflow = find_tensorflow()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extension = Path(str(metadata.distribution("horovod").locate_file(f"horovod/tensorflow/mpi_lib{suffix}")))
    answers, problem = room._load(extension, tensorflow)
    assert problem is None
    assert set(answers) - {loading.MPI_VERSION} == set(loading.OPERATIONS)
    assert answers["gloo"] == 1
