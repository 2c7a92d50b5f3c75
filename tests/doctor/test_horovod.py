"""Horovod as `horovod_build` finds it, and what a build of it needs."""

import pytest

from tfperf.doctor import State, horovod
from tfperf.parallel import horovod_build
from tfperf.parallel.horovod_build import InstalledHorovod


@pytest.fixture
def here(monkeypatch):
    """A function that fakes which Horovod is installed."""

    def here(found):
        monkeypatch.setattr(horovod_build, "installed", lambda: found)
        return horovod._horovod()

    return here


def horovod_of(**changes):
    fields = {"version": "0.28.1", "tensorflow": "2.21.0", "key": None, "built_with": ("gloo",), "nccl": None}
    return InstalledHorovod(**{**fields, "problem": None, **changes})


def test_none_is_a_note_with_the_way_to_get_it(here):
    finding = here(None)
    assert (finding.state, finding.found) == (State.NOTE, "not installed")
    assert finding.mend.endswith("tfperf horovod install")


def test_what_it_was_built_for_and_with_is_told(here):
    finding = here(horovod_of())
    assert (finding.state, finding.found) == (State.OK, "0.28.1 for TensorFlow 2.21.0 with gloo")
    assert here(horovod_of(built_with=("gloo", "nccl"), nccl="2.27.3")).found.endswith("gloo, nccl 2.27.3")


def test_one_that_does_not_work_is_a_note_and_is_to_be_built_anew(here):
    finding = here(horovod_of(built_with=(), problem="it was built for TensorFlow 2.20.0, not [bold]2.21.0"))
    assert finding.state is State.NOTE
    assert finding.found.endswith("does not work here: it was built for TensorFlow 2.20.0, not [bold]2.21.0")
    assert finding.mend.endswith("tfperf horovod install")


def test_no_compiler_is_a_note(tools, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    assert horovod._toolchain().state is State.NOTE
    assert horovod._toolchain().mend == ""
    tools("apt-get", "exit 0")
    finding = horovod._toolchain()
    assert "C++ compiler" in finding.found
    assert finding.mend.endswith("apt-get install g++ make")


def test_a_compiler_that_does_not_compile_is_a_note(tools, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    tools("c++", "echo broken; exit 1")
    assert horovod._toolchain().state is State.NOTE
    assert "broken" in horovod._toolchain().found
