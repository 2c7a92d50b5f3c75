"""What the trial's report means for TensorFlow, Keras and XLA."""

import json

import pytest

from tfperf.doctor import State, tensorflow
from tfperf.doctor.trial import Report


@pytest.fixture(autouse=True)
def _no_backend_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def states(report):
    return [finding.state for finding in tensorflow.look(report)]


def test_good_health_is_three_times_ok(well):
    tf, keras, xla = tensorflow.look(well())
    assert tf.found == "2.21.0 imports, built for CUDA 12.5.1 and cuDNN 9, oneDNN on"
    assert keras.found == "3.15.1, backend tensorflow"
    assert xla.found == "compiled and ran a function on CPU:0"
    assert states(well()) == [State.OK] * 3


@pytest.mark.parametrize(("onednn", "words"), [(True, "oneDNN on"), (False, "oneDNN off"), (None, "oneDNN not told")])
def test_a_build_without_cuda_and_onednn_are_told(well, onednn, words):
    found = {"version": "2.21.0", "cuda": False, "cuda_version": None, "cudnn_version": None, "onednn": onednn}
    assert tensorflow.look(well(tensorflow=found))[0].found == f"2.21.0 imports, built without CUDA, {words}"


def test_a_tensorflow_that_is_not_there_is_missing():
    report = Report({"tensorflow": {"error": "ModuleNotFoundError: No module named 'tensorflow'"}})
    tf, keras, xla = tensorflow.look(report)
    assert (tf.state, keras.state, xla.state) == (State.MISSING, State.NOTE, State.NOTE)
    assert "install 'tensorflow<" in tf.mend
    assert "force" not in tf.mend
    assert keras.found == "not tried, because tensorflow failed"


def test_a_tensorflow_that_does_not_import_is_installed_anew():
    tf, *_ = tensorflow.look(Report({"tensorflow": {"error": "TypeError: Descriptors cannot be created directly"}}))
    assert tf.state is State.UNFIT
    assert "--force-reinstall 'tensorflow<" in tf.mend


def test_a_crash_is_unfit_and_no_command_is_made_up_for_it():
    tf, *_ = tensorflow.look(Report({}, "its process was ended by SIGILL, an illegal instruction"))
    assert (tf.state, tf.mend) == (State.UNFIT, "")
    assert "SIGILL" in tf.found


@pytest.mark.parametrize("end", ["its process was ended by SIGSEGV", "it did not finish within 120 s and was ended"])
def test_an_xla_that_crashes_or_hangs_is_unfit(well, end):
    tf, keras, xla = tensorflow.look(well(end, xla=None))
    assert (tf.state, keras.state, xla.state) == (State.OK, State.OK, State.UNFIT)
    assert xla.found == end


def test_another_backend_is_unfit_and_says_who_chose_it(well, monkeypatch, tmp_path):
    report = well(keras={"version": "3.15.1", "backend": "jax"})
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    _, keras, _ = tensorflow.look(report)
    assert keras.state is State.UNFIT
    assert str(tmp_path / "keras.json") in keras.found
    assert keras.mend == "export KERAS_BACKEND=tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert "variable KERAS_BACKEND chooses" in tensorflow.look(report)[1].found


def test_a_backend_that_cannot_be_imported_is_the_backends_fault(well, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "[bold]torch")
    _, keras, _ = tensorflow.look(well(keras={"error": "ModuleNotFoundError: No module named 'torch'"}))
    assert keras.state is State.UNFIT
    assert keras.found.endswith("the variable KERAS_BACKEND chooses [bold]torch")
    assert keras.mend == "export KERAS_BACKEND=tensorflow"


def test_a_broken_keras_is_installed_anew(well):
    _, keras, _ = tensorflow.look(well(keras={"error": "AttributeError: x"}))
    assert keras.state is State.UNFIT
    assert "--force-reinstall 'keras<" in keras.mend


@pytest.mark.parametrize("content", ["{", "[]", "7", "{}", '{"backend": null}', None])
def test_a_broken_file_of_keras_chooses_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "keras.json").write_text(content)
    assert tensorflow._chosen_backend() == (None, "")
