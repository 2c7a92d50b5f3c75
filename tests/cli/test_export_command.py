"""`tfperf export` and `tfperf verify`: what they write, and that bad input writes nothing."""

import pickle

import numpy as np
import pytest

from tfperf.cli import main

CODE = """
import keras
def build():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2, name="y")], name="mine")
def scale():
    return keras.Sequential([keras.Input((3,), dtype="uint8", name="bytes"), keras.layers.Rescaling(0.5)])
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "my_model.py").write_text(CODE)
    return tmp_path / "my_model.py"


def test_a_net_is_exported_and_verified(tfperf_command, code, tmp_path):
    np.savez(tmp_path / "in.npz", bytes=np.ones((2, 3), "uint8"))
    options = ["--softmax", "--preprocess", f"{code}:scale", "--inputs", tmp_path / "in.npz", "--warm-up", "1,8"]
    result = tfperf_command("export", f"{code}:build", tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert "takes bytes (any, 3) uint8" in result.stdout
    assert "gives y (any, 2) float32, probabilities" in result.stdout
    checked = tfperf_command("verify", tmp_path / "out" / "mine")
    assert checked.returncode == 0, checked.stderr
    assert "to the last bit" in checked.stdout
    again = tfperf_command("export", tmp_path / "out" / "mine" / "1", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "mine" / "1" / "saved_model.pb").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense", "{out}"],
        ["{code}:missing", "{out}"],
        ["{code}:build", "{out}", "--version", "0"],
        ["{code}:build", "{out}", "--warm-up", "one"],
        ["{code}:build", "{out}", "--name", "a/b"],
        ["{code}:build", "{out}", "--inputs", "{folder}/pickled.npz"],
        ["{code}:build", "{out}", "--inputs", "{folder}/strings.npz"],
        ["{code}:build", "{out}", "--signature", "other"],
        ["{code}:build", "{out}", "--preprocess", "mlp"],
        ["{code}:build", "{code}"],
    ],
    ids=lambda arguments: " ".join(arguments[2:]) or arguments[0],
)
def test_bad_input_is_one_line_and_writes_nothing(capfd, code, tmp_path, arguments):
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "strings.npz", x=np.array([["a", "b", "c"]]))
    places = {"out": tmp_path / "out", "code": code, "folder": tmp_path}
    capfd.readouterr()  # of other tests' TensorFlow
    with pytest.raises(SystemExit) as ended:
        main(["export", *(argument.format(**places) for argument in arguments)])
    assert ended.value.code == 2
    told = capfd.readouterr().err
    assert len(told.strip().splitlines()) == 1, told
    assert not list((tmp_path / "out").rglob("*"))


def test_a_pickle_is_not_run(tfperf_command, code, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "run"), "w"))

    (tmp_path / "evil.npz").write_bytes(pickle.dumps(Evil()))
    result = tfperf_command("export", f"{code}:build", tmp_path / "out", "--inputs", tmp_path / "evil.npz")
    assert result.returncode == 2
    assert not (tmp_path / "run").exists()


def test_verify_names_an_altered_file(tfperf_command, code, tmp_path):
    assert tfperf_command("export", f"{code}:build", tmp_path).returncode == 0
    path = tmp_path / "mine" / "1" / "variables" / "variables.index"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    result = tfperf_command("verify", tmp_path / "mine")
    assert result.returncode == 2
    assert "variables/variables.index is altered" in result.stderr
