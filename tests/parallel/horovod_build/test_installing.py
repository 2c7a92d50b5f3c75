"""How Horovod is brought into an environment: what is asked, in which order, and what is said."""

import contextlib
import dataclasses
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import InstalledHorovod, Source, Wanted
from tfperf.parallel.horovod_build import installing as room
from tfperf.parallel.horovod_build.requirements import Compiler, Mpi, Nccl

WORKS = InstalledHorovod("0.28.1", "2.21.0", None, ("gloo",), None, None)
NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@dataclasses.dataclass
class Machine:
    """What is installed, what happened to it, and what a build brings."""

    here: InstalledHorovod | None = None
    brings: InstalledHorovod | None = WORKS
    happened: list[str] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture
def machine(monkeypatch, fake_tensorflow, make_wheel, tmp_path):
    machine = Machine()

    def build(plan, cache, jobs, on_line):
        machine.happened.append(f"build -j{jobs}")
        return make_wheel(cache / plan.key / NAME)

    def pip(arguments):
        machine.happened.append(f"pip {arguments[0]} {Path(arguments[-1]).name}")
        machine.here = machine.brings

    monkeypatch.setattr(room, "find_horovod", lambda: machine.here)
    monkeypatch.setattr(room, "find_tensorflow", fake_tensorflow)
    monkeypatch.setattr(room, "find_compiler", lambda: Compiler(("g++",), "gcc", "12.2.0"))
    monkeypatch.setattr(room, "check_make", lambda: None)
    monkeypatch.setattr(room, "usable_cores", lambda: 4)
    monkeypatch.setattr(room, "build", build)
    monkeypatch.setattr(room, "_pip", pip)
    return machine


@pytest.fixture
def install(machine, tmp_path):
    def install(wanted=Wanted(), **options):  # noqa: B008  # immutable
        return room.install(tmp_path / "cache", wanted, say=machine.said.append, **options)

    return install


def test_it_is_built_kept_and_installed(machine, install):
    assert install() == (WORKS, Source.BUILD)
    assert machine.happened == ["build -j4", f"pip install {NAME}"]
    assert machine.said == [
        "building Horovod 0.28.1 for TensorFlow 2.21.0 with gcc 12.2.0, 4 files at once: about 2 minutes on 2 cores"
    ]


def test_the_next_environment_takes_it_from_the_cache(machine, install):
    install()
    machine.here = None
    machine.happened.clear()
    assert install() == (WORKS, Source.CACHE)
    assert machine.happened == [f"pip install {NAME}"]


def test_one_that_works_is_left_as_it_is(machine, install, monkeypatch):
    machine.here = WORKS
    monkeypatch.setattr(room, "find_compiler", lambda: pytest.fail("no compiler is needed"))
    assert install() == (WORKS, Source.HERE)
    assert machine.happened == []


def test_one_that_works_needs_no_cache(machine, tmp_path):
    machine.here = WORKS
    (tmp_path / "file").write_text("")
    assert room.install(tmp_path / "file/cache", say=machine.said.append) == (WORKS, Source.HERE)


def test_what_another_install_brought_meanwhile_is_taken(machine, install, monkeypatch):
    @contextlib.contextmanager
    def locked(cache, say):
        machine.here = WORKS
        yield True

    monkeypatch.setattr(room, "locked", locked)
    assert install() == (WORKS, Source.HERE)
    assert machine.happened == []


@pytest.mark.parametrize(
    "stale",
    [
        {"problem": "it was built for TensorFlow 2.20.0, not 2.21.0"},
        {"version": "0.27.0"},
        {"built_with": ()},
        {"built_with": ("mpi",)},
    ],
)
def test_one_that_does_not_is_replaced(machine, install, stale):
    machine.here = dataclasses.replace(WORKS, **stale)
    assert install()[1] is Source.BUILD
    assert machine.here == WORKS


def test_rebuild_builds_whatever_there_is(machine, install):
    install()
    assert install(rebuild=True, jobs=1)[1] is Source.BUILD
    assert machine.happened[-2:] == ["build -j1", f"pip install {NAME}"]


def test_mpi_and_nccl_are_asked_for(machine, install, monkeypatch):
    machine.here = WORKS
    nccl = Nccl("2.27.3", Path("/include"), Path("/lib/libnccl.so"), False, "12.9", Path("/cuda"))
    monkeypatch.setattr(room, "find_mpi", lambda: Mpi("openmpi-4.1.4"))
    monkeypatch.setattr(room, "find_nccl", lambda: nccl)
    machine.brings = dataclasses.replace(WORKS, built_with=("gloo", "mpi", "nccl", "cuda"))
    assert install(Wanted(mpi=True, nccl=True))[1] is Source.BUILD
    assert "tensorflow 2.21.0 was built without CUDA: its tensors are never on a GPU" in machine.said
    machine.happened.clear()
    assert install()[1] is Source.HERE, "it has all that is wanted, and more"
    assert install(Wanted(mpi=True))[1] is Source.HERE


def test_a_cuda_that_is_not_tensorflow_s_is_told(machine, install, monkeypatch, fake_tensorflow):
    tensorflow = fake_tensorflow()
    build_info = tensorflow.folder / "python/platform/build_info.py"
    build_info.parent.mkdir(parents=True)
    build_info.write_text("('cuda_version', '12.5.1')")
    monkeypatch.setattr(room, "find_tensorflow", lambda: tensorflow)
    nccl = Nccl("2.27.3", Path("/include"), Path("/lib/libnccl.so"), False, "13.0", Path("/cuda"))
    monkeypatch.setattr(room, "find_nccl", lambda: nccl)
    machine.brings = dataclasses.replace(WORKS, built_with=("gloo", "nccl", "cuda"))
    install(Wanted(nccl=True))
    assert "TensorFlow was built with CUDA 12.5.1 and nvcc is of 13.0: both must suit the GPU's driver" in machine.said


def test_a_newer_tensorflow_is_tried_with_a_word(machine, install, monkeypatch, fake_tensorflow):
    monkeypatch.setattr(room, "find_tensorflow", lambda: fake_tensorflow("2.22.0"))
    install()
    assert machine.said[0] == "TensorFlow 2.22.0 is newer than 2.21, the last that this was tried with; trying"


def test_what_was_built_and_does_not_work_is_an_error(machine, install):
    machine.brings = dataclasses.replace(WORKS, problem="its extension does not load")
    with pytest.raises(HorovodError, match=r"was installed from .*whl, but its extension does not load; .*--rebuild"):
        install()


def test_no_tensorflow_is_told_before_anything_is_built(machine, install, monkeypatch):
    monkeypatch.setattr(room, "find_tensorflow", lambda: None)
    with pytest.raises(HorovodError, match="found none; pip install tensorflow"):
        install()
    assert machine.happened == []


def test_another_system_is_refused(install, monkeypatch):
    monkeypatch.setattr(room.sys, "platform", "win32")
    with pytest.raises(HorovodError, match="expected Linux, found win32"):
        install()


def test_an_environment_without_pip_says_how_to_get_it(install, monkeypatch):
    real = room.importlib.util.find_spec
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    with pytest.raises(HorovodError, match=r"expected pip in this environment.* -m ensurepip --upgrade"):
        install()


def test_an_environment_that_cannot_be_written_is_refused(install, monkeypatch):
    monkeypatch.setattr(room.os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(HorovodError, match="but may not; use a virtual environment of your own"):
        install()


def test_the_system_s_own_python_is_refused(install, monkeypatch, tmp_path):
    (tmp_path / "EXTERNALLY-MANAGED").write_text("")
    monkeypatch.setattr(room.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(HorovodError, match="expected a virtual environment, found the system's own Python"):
        install()


def test_a_full_disk_is_one_line(install, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(room, "build", full)
    with pytest.raises(HorovodError) as caught:
        install()
    assert str(caught.value) == (
        "Horovod cannot be installed: No space left on device (/tmp/x); "
        "make room, or set TMPDIR and TFPERF_CACHE to a larger disk"
    )


class TestPip:
    """The pip commands themselves."""

    def test_needs_that_are_there_are_not_touched(self, fake_pip, make_wheel, tmp_path):
        calls = fake_pip("")
        wheel = make_wheel(tmp_path / NAME)
        room._install(wheel)
        assert calls.read_text().splitlines() == [f"install --force-reinstall --no-deps --no-index {wheel}"]

    def test_needs_that_are_missing_are_installed_first(self, fake_pip, make_wheel, tmp_path, monkeypatch):
        calls = fake_pip("")
        real = metadata.version

        def version(name):
            if name == "pyyaml":
                raise metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(room.metadata, "version", version)
        room._install(make_wheel(tmp_path / NAME))
        assert calls.read_text().splitlines()[0] == "install pyyaml"

    def test_pip_s_error_is_one_line(self, fake_pip, make_wheel, tmp_path):
        fake_pip("print('Processing x')\nprint('ERROR: Could not install: Permission denied')\nsys.exit(1)")
        with pytest.raises(HorovodError, match=r"^pip install .* failed: ERROR: Could not install: Permission denied$"):
            room._install(make_wheel(tmp_path / NAME))
