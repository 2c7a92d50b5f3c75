"""MPI and NCCL, against scripts and folders that play them."""

import sys

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import libraries
from tfperf.parallel.horovod_build.libraries import Mpi, find_mpi, find_nccl

NVCC = "echo 'Cuda compilation tools, release 12.9, V12.9.86'"
HEADER = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 3\n"


@pytest.fixture
def nccl(tmp_path, monkeypatch):
    """A function that writes an NCCL into a folder; without it there is none, wherever the machine has one."""
    monkeypatch.setattr(libraries, "_nccl_places", lambda cuda_home: [(cuda_home / "include", cuda_home / "lib", True)])
    home = tmp_path / "cuda"
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(home))

    def make(header=HEADER, library="libnccl.so.2"):
        for folder in ("include", "lib"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        (home / "include/nccl.h").write_text(header)
        if library:
            (home / "lib" / library).write_text("")
        return home

    return make


@pytest.fixture
def nvcc(tmp_path):
    """nvcc in CUDA's folder, not on the PATH."""
    script = tmp_path / "cuda/bin/nvcc"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{NVCC}\n")
    script.chmod(0o755)
    return script


def test_open_mpi_tells_its_version(programs):
    programs("mpicxx", "echo 'mpicxx: Open MPI 4.1.4 (Language: C++)'")
    assert find_mpi() == Mpi("openmpi-4.1.4")


def test_another_mpi_is_told_apart_by_its_paths(programs):
    def name(path):
        programs("mpicxx", f'case "$*" in -show) echo g++ -I{path} ;; *) exit 1 ;; esac')
        return find_mpi().name

    assert name("/opt/mpich-3") != name("/opt/mpich-4")
    assert name("/opt/mpich-3").startswith("mpi-")


def test_mpi_home_is_heeded(programs, tmp_path, monkeypatch):
    script = programs("mpicxx", "echo 'mpicxx: Open MPI 5.0.1'")
    (tmp_path / "mpi/bin").mkdir(parents=True)
    script.rename(tmp_path / "mpi/bin/mpicxx")
    monkeypatch.setenv("MPI_HOME", str(tmp_path / "mpi"))
    assert find_mpi() == Mpi("openmpi-5.0.1")


def test_no_mpi_says_what_to_install(programs):
    with pytest.raises(
        HorovodError, match=r"found no pip package and no mpicxx on the PATH; pip install 'tfperf\[mpi\]'"
    ):
        find_mpi()


@pytest.fixture
def pip_package(programs, tmp_path, monkeypatch):
    """A function that installs an MPI of pip's into a folder; no program of it is on the PATH."""

    def make(name="mpich", place="env", wrapper=True):
        site = tmp_path / place / "lib/site-packages"
        information = site / f"{name}-5.0.2.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.0.2\n")
        (information / "RECORD").write_text("../../bin/mpicxx,,\n../../include/mpi.h,,\n")
        folder = tmp_path / place / "bin"
        folder.mkdir()
        if wrapper:
            (folder / "mpicxx").write_text("")
        monkeypatch.setattr(sys, "path", [str(site)])
        return folder

    return make


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_an_mpi_of_pip_is_found_where_pip_put_it(pip_package, name):
    folder = pip_package(name)
    found = find_mpi()
    assert found.folder == folder
    assert found.name.startswith(f"{name}-5.0.2-")


def test_an_mpi_of_pip_in_another_place_is_another_one(pip_package):
    names = []
    for place in ("one", "two"):
        pip_package(place=place)
        names.append(find_mpi().name)
    assert names[0] != names[1]


def test_an_mpi_on_the_path_comes_before_that_of_pip(pip_package, programs):
    pip_package()
    programs("mpicxx", "echo 'mpicxx: Open MPI 4.1.4 (Language: C++)'")
    assert find_mpi() == Mpi("openmpi-4.1.4")


def test_an_mpi_of_pip_without_its_compiler_is_none(pip_package):
    pip_package(wrapper=False)
    with pytest.raises(HorovodError, match="expected an MPI"):
        find_mpi()


def test_a_broken_mpi_is_named(programs):
    programs("mpicxx", "exit 1")
    with pytest.raises(HorovodError, match="does not answer -show"):
        find_mpi()


def test_nccl_and_cuda_are_found(nccl, nvcc, programs):
    home = nccl()
    found = find_nccl()
    assert (found.version, found.cuda, found.cuda_home) == ("2.27.3", "12.9", home)
    assert (found.include, found.library) == (home / "include", home / "lib/libnccl.so.2")


def test_nvcc_on_the_path_leads_to_its_own_home(nccl, programs, monkeypatch):
    home = nccl()
    monkeypatch.delenv("HOROVOD_CUDA_HOME")
    programs("nvcc", f"""case "$*" in --version) {NVCC} ;; *) echo '#$ TOP={home}/bin/..'; exit 1 ;; esac""")
    (home / "bin").mkdir()
    assert find_nccl().cuda_home == home


def test_no_nvcc_says_what_to_install(nccl, programs):
    nccl()
    with pytest.raises(HorovodError, match=r"expected CUDA's compiler nvcc .* found none; install NVIDIA's"):
        find_nccl()


@pytest.mark.parametrize("library", [None, "libnccl-net.so"])
def test_a_header_without_a_library_is_no_nccl(nccl, nvcc, programs, library):
    nccl(library=library)
    with pytest.raises(HorovodError, match="found no place with both; pip install nvidia-nccl-cu12"):
        find_nccl()


def test_horovod_s_own_variables_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_NCCL_HOME", str(tmp_path / "home"))
    first = next(iter(libraries._nccl_places(tmp_path / "cuda")))
    assert first == (tmp_path / "home/include", tmp_path / "home/lib", False)
    monkeypatch.setenv("HOROVOD_NCCL_INCLUDE", str(tmp_path / "include"))
    monkeypatch.setenv("HOROVOD_NCCL_LIB", str(tmp_path / "lib"))
    assert next(iter(libraries._nccl_places(tmp_path / "cuda"))) == (tmp_path / "include", tmp_path / "lib", False)
