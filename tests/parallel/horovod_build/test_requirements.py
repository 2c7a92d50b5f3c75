"""What a build needs of this machine: the real TensorFlow and written ones; scripts and folders that play the rest."""

import sys
from importlib import metadata

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import requirements
from tfperf.parallel.horovod_build.requirements import (
    Compiler,
    InstalledTensorFlow,
    Mpi,
    check_make,
    check_tensorflow,
    find_compiler,
    find_mpi,
    find_nccl,
    find_tensorflow,
)

NVCC = "echo 'Cuda compilation tools, release 12.9, V12.9.86'"
HEADER = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 3\n"


def test_the_real_tensorflow_is_found_and_fit():
    found = check_tensorflow(find_tensorflow())
    assert (found.distribution, found.version) == ("tensorflow", metadata.version("tensorflow"))
    assert (found.include / "tensorflow/core/public/version.h").exists()
    assert found.minor_version >= (2, 21)


def test_its_cuda_is_read_and_not_imported(fake_tensorflow):
    tensorflow = fake_tensorflow()
    assert tensorflow.cuda_version() is None
    build_info = tensorflow.folder / "python/platform/build_info.py"
    build_info.parent.mkdir(parents=True)
    build_info.write_text("build_info = OrderedDict([('cpu_compiler', 'clang'), ('cuda_version', '12.5.1')])")
    assert tensorflow.cuda_version() == "12.5.1"
    build_info.write_text("build_info = OrderedDict([('cpu_compiler', 'clang')])")
    assert tensorflow.cuda_version() is None


def test_a_folder_without_code_is_no_tensorflow(tmp_path, monkeypatch):
    (tmp_path / "tensorflow").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_tensorflow() is None


def test_no_tensorflow_says_what_to_install():
    with pytest.raises(
        HorovodError, match=r"^expected TensorFlow 2\.16 or later .*found none; pip install tensorflow$"
    ):
        check_tensorflow(None)


@pytest.mark.parametrize("version", ["2.15.1", "2.9.0", "1.15.5"])
def test_an_older_one_needs_no_help(fake_tensorflow, version):
    with pytest.raises(HorovodError, match=f"found {version}: .*pip install --no-build-isolation horovod"):
        check_tensorflow(fake_tensorflow(version))


def test_the_one_whose_wheel_lacks_headers_is_unfit(fake_tensorflow):
    with pytest.raises(HorovodError, match=r"found 2\.19\.1, whose headers include llvm/.*; pip install tensorflow==2"):
        check_tensorflow(fake_tensorflow("2.19.1"))


@pytest.mark.parametrize("version", ["2.16.0", "2.18.1", "2.20.0", "2.21.0", "2.22.0rc1", "3.0.0"])
def test_a_later_one_is_tried(fake_tensorflow, version):
    assert check_tensorflow(fake_tensorflow(version)).version == version


def test_one_without_headers_is_refused(tmp_path):
    with pytest.raises(HorovodError, match=r"expected TensorFlow's C\+\+ headers.*reinstall tensorflow-cpu"):
        check_tensorflow(InstalledTensorFlow("tensorflow-cpu", "2.21.0", tmp_path))


def test_spaces_in_the_path_are_refused(fake_tensorflow, tmp_path):
    with pytest.raises(HorovodError, match="path without spaces"):
        check_tensorflow(fake_tensorflow(where=tmp_path / "my projects"))


@pytest.mark.parametrize(("kind", "name"), [("gcc", "c++"), ("gcc", "g++"), ("clang", "clang++")])
def test_it_is_found_by_its_names(fake_compiler, kind, name):
    fake_compiler(name, kind)
    assert find_compiler() == Compiler((name,), kind, "12.2.0")


def test_cxx_is_heeded_with_all_its_words(fake_compiler, programs, monkeypatch):
    fake_compiler("g++", major=10)
    fake_compiler("g++-13", major=13)
    programs("ccache", 'exec "$@"')
    monkeypatch.setenv("PATH", f"{programs('x').parent}:/usr/bin:/bin")
    monkeypatch.setenv("CXX", f"ccache {programs('x').parent / 'g++-13'}")
    assert find_compiler().version == "13.2.0"
    assert find_compiler().command[0] == "ccache"


def test_no_compiler_says_what_to_install(programs):
    with pytest.raises(HorovodError, match=r"found none on the PATH; apt-get install g\+\+ make"):
        find_compiler()


def test_a_cxx_that_is_not_there_is_named(programs, monkeypatch):
    monkeypatch.setenv("CXX", "g++-99 -m64")
    with pytest.raises(HorovodError, match=r"found no program 'g\+\+-99'; apt-get install"):
        find_compiler()


@pytest.mark.parametrize(("kind", "major"), [("gcc", 8), ("clang", 8)])
def test_one_before_cpp17_is_too_old(fake_compiler, kind, major):
    fake_compiler("c++", kind, major)
    with pytest.raises(HorovodError, match=rf"expected {kind} 9 or later, for C\+\+17; c\+\+ is {kind} 8\.2\.0"):
        find_compiler()


@pytest.mark.parametrize(("kind", "major"), [("gcc", 9), ("clang", 9)])
def test_the_oldest_one_is_good_enough(fake_compiler, kind, major):
    fake_compiler("c++", kind, major)
    assert find_compiler().version == "9.2.0"


def test_one_without_its_library_says_what_it_lacks(fake_compiler):
    fake_compiler(error="x.cc:1:10: fatal error: filesystem: No such file or directory")
    with pytest.raises(HorovodError, match=r"few lines of C\+\+17, but: x\.cc:1:10: fatal error: filesystem.*apt-get"):
        find_compiler()


def test_one_that_does_not_run_is_told(programs):
    programs("g++", "echo 'cc1plus: not found'; exit 1")
    with pytest.raises(HorovodError, match="does not preprocess an empty file: cc1plus: not found; apt-get"):
        find_compiler()


def test_make_is_asked_for(programs):
    programs("cc")
    with pytest.raises(HorovodError, match="expected make on the PATH to build Horovod with, found none; apt-get"):
        check_make()
    programs("make")
    check_make()


def test_a_c_compiler_is_asked_for(programs, monkeypatch):
    programs("gmake")
    with pytest.raises(HorovodError, match=r"expected a C compiler .* none named cc or gcc or clang; apt-get"):
        check_make()
    monkeypatch.setenv("CC", "gcc-13")
    programs("cc")
    with pytest.raises(HorovodError, match="none named gcc-13"):
        check_make()
    programs("gcc-13")
    check_make()


@pytest.fixture
def nccl(tmp_path, monkeypatch):
    """A function that writes an NCCL into a folder; without it there is none, wherever the machine has one."""
    monkeypatch.setattr(
        requirements, "_nccl_places", lambda cuda_home: [(cuda_home / "include", cuda_home / "lib", True)]
    )
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
    first = next(iter(requirements._nccl_places(tmp_path / "cuda")))
    assert first == (tmp_path / "home/include", tmp_path / "home/lib", False)
    monkeypatch.setenv("HOROVOD_NCCL_INCLUDE", str(tmp_path / "include"))
    monkeypatch.setenv("HOROVOD_NCCL_LIB", str(tmp_path / "lib"))
    assert next(iter(requirements._nccl_places(tmp_path / "cuda"))) == (tmp_path / "include", tmp_path / "lib", False)
