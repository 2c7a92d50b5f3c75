"""Engines, Horovod and what a build of it needs, Spark and its Java, data sets; nothing is fetched."""

import importlib.util
import socket

import pytest

from tfperf.data import NAMES
from tfperf.data.expected import IMAGE_SETS
from tfperf.data.places import download_place, places
from tfperf.doctor import State, optional
from tfperf.doctor.optional import examine_data, examine_engines, examine_spark
from tfperf.parallel import horovod_build
from tfperf.parallel.horovod_build import InstalledHorovod


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Empty caches, no Java chosen, and a network that is an error to touch."""

    def refuse(*arguments):
        raise AssertionError("the doctor used the network")

    monkeypatch.delenv("JAVA_HOME", raising=False)
    for variable in ("KERAS_HOME", "TFPERF_CACHE"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setitem(places.__kwdefaults__, "installed", tmp_path / "debian")


def test_every_data_set_is_looked_for():
    assert [finding.subject for finding in examine_data()] == [f"data set {name}" for name in NAMES]


@pytest.mark.parametrize("name", sorted(IMAGE_SETS))
def test_one_that_is_not_here_is_a_note_and_is_not_fetched(name, tmp_path):
    finding = optional._image_set(name)
    assert finding.state is State.NOTE
    assert finding.mend.endswith(f"tfperf data {name}")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_corrupt_one_is_a_note_that_names_the_file():
    spec = IMAGE_SETS["mnist"]
    folder = download_place(spec).folder
    folder.mkdir(parents=True)
    (folder / spec.files[0].filename).write_bytes(b"not a data set")
    finding = optional._image_set("mnist")
    assert finding.state is State.NOTE
    assert str(folder / spec.files[0].filename) in finding.found
    assert "Delete it" in finding.found


def test_one_that_is_here_is_told_with_its_place(monkeypatch):
    class Found:
        source = "tfperf cache: [bold]/somewhere"

    monkeypatch.setattr("tfperf.data.loading.locate", lambda spec, candidates: Found)
    finding = optional._image_set("mnist")
    assert (finding.state, finding.found) == (State.OK, "tfperf cache: [bold]/somewhere")


def test_the_digits_come_with_scikit_learn(versions):
    versions(scikit_learn="1.9.1")
    assert optional._digits("digits").found == "scikit-learn 1.9.1, which holds it, is installed"
    versions()
    finding = optional._digits("digits")
    assert finding.state is State.NOTE
    assert finding.mend.endswith("install 'tfperf[data]'")


@pytest.fixture
def here(monkeypatch):
    """A function that fakes which Horovod is installed."""

    def here(found):
        monkeypatch.setattr(horovod_build, "find_horovod", lambda: found)
        return optional._horovod()

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
    assert optional._compiler().state is State.NOTE
    assert optional._compiler().mend == ""
    tools("apt-get", "exit 0")
    finding = optional._compiler()
    assert "C++ compiler" in finding.found
    assert finding.mend.endswith("apt-get install g++ make")


def test_a_compiler_that_does_not_compile_is_a_note(tools, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    tools("c++", "echo broken; exit 1")
    assert optional._compiler().state is State.NOTE
    assert "broken" in optional._compiler().found


def test_nothing_is_three_notes(versions, tools):
    versions()
    findings = examine_spark()
    assert [finding.state for finding in findings] == [State.NOTE] * 3
    assert findings[0].mend.endswith("install 'tfperf[spark]'")
    assert findings[2].found == "none; Spark needs version 17 or later"


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        ("""echo 'openjdk version "17.0.15" 2025-04-15' >&2""", State.OK, "version 17"),
        ("""echo 'java version "21" 2023-09-19' >&2""", State.OK, "version 21"),
        ("""echo 'openjdk version "1.8.0_412"' >&2""", State.NOTE, "version 8; Spark needs version 17 or later"),
        ("echo '[bold]what?' >&2", State.NOTE, "does not say its version"),
    ],
)
def test_java_is_new_enough_or_a_note(tools, script, state, words):
    tools("java", script)
    finding = optional._java()
    assert finding.state is state
    assert words in finding.found


def test_java_is_got_from_apt_where_there_is_apt(tools):
    tools("apt-get", "exit 0")
    assert optional._java().mend.endswith("apt-get install openjdk-17-jre-headless")


@pytest.mark.parametrize("is_there", [True, False])
def test_tensorflowonspark_needs_an_old_setuptools(versions, monkeypatch, is_there):
    versions(tensorflowonspark="2.2.5")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_there else None)
    finding = optional._tensorflow_on_spark()
    assert finding.state is (State.OK if is_there else State.NOTE)
    assert finding.mend == "" or finding.mend.endswith("install 'setuptools<81'")
    assert bool(finding.mend) != is_there


def test_an_engine_that_is_not_there_is_a_note(versions):
    versions()
    findings = examine_engines()
    assert [finding.subject for finding in findings] == ["LiteRT", "ONNX Runtime", "tf2onnx", "OpenVINO"]
    assert {finding.state for finding in findings} == {State.NOTE}
    packages = [finding.mend.split()[-1] for finding in findings]
    assert packages == ["ai-edge-litert", "onnxruntime", "tf2onnx", "openvino"]


def test_any_of_the_packages_that_hold_an_engine_will_do(versions):
    versions(onnxruntime_gpu="1.31.0", ai_edge_litert="2.3.0")
    litert, onnx, *_ = examine_engines()
    assert (litert.state, litert.found) == (State.OK, "ai-edge-litert 2.3.0 is installed")
    assert (onnx.state, onnx.found) == (State.OK, "onnxruntime-gpu 1.31.0 is installed")


def test_a_hostile_version_is_just_text(versions):
    versions(openvino="[bold]\x1b]0;x\x07")
    assert examine_engines()[-1].found == "openvino [bold]\\x1b]0;x\\x07 is installed"
