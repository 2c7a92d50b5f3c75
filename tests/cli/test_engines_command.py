"""`tfperf engines`: what it prints and writes, that bad input writes nothing, and that Ctrl-C leaves nothing."""

import importlib.util
import signal
import subprocess
import sys

import keras
import numpy as np
import psutil
import pytest

from tfperf.cli import main
from tfperf.measure.results import read_result

CODE = """
import keras
def build():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2, name="y")]
    return keras.Sequential([keras.Input((3,), name="x"), *layers], name="mine")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A cache for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def code(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("TFPERF_CACHE", str(kept))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(CODE)
    return f"{tmp_path / 'my_model.py'}:build"


def test_a_run_is_a_table_a_result_file_and_a_picture(tfperf_command, code, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3), "float32"))
    options = ["--engine", "onnx,litert", "--batch", "1,7", "--threads", "1", "--time-limit", "0.3"]
    files = ["--inputs", tmp_path / "in.npz", "--json", "deep/r.json"]
    result = tfperf_command("engines", code, *options, *files, timeout=240)
    assert result.returncode == 0, result.stderr
    for batch in (1, 7):
        assert f"mine, batch {batch}, 1 thread\n" in result.stdout
        assert f"fastest in float32 at batch {batch}: " in result.stdout
        assert f"litert, 1 thread: loading, and checking its answers at batch {batch}\n" in result.stderr
    assert result.stdout.count("speed-up [99 %]") == 2
    assert result.stdout.count("\nlitert ") + result.stdout.count("\n litert ") == 4  # two tables for each batch size
    assert "deep/r.json" in result.stdout
    kept = read_result(tmp_path / "deep" / "r.json")
    assert kept.name == "engines mine"
    assert list(kept.runs) == [f"{name}, 1 thread, batch {batch}" for batch in (1, 7) for name in ("litert", "onnx")]
    assert [agreement.passed for agreement in kept.agreements] == [True] * 4
    assert kept.facts["onnx, 1 thread, batch 7: status"] == "ran"
    assert (tmp_path / "deep" / "r.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"deep", "in.npz", "my_model.py"}


def test_a_trial_of_a_tuning_runs_alone(code, tmp_path, capfd):
    """With each engine's own threads, a net that was changed, and the tolerance that was asked for."""
    options = ["--engine", "graph,litert", "--threads", "default", "--transform", "constant_weights", "--same-top1"]
    with pytest.raises(SystemExit) as ended:
        main(["engines", code, *options, "--tolerance", "0.5", "--time-limit", "0.3", "--json", "r.json"])
    told = capfd.readouterr()
    assert ended.value.code == 0, told.err
    assert "\nmine, batch 1\n" in told.out
    facts = read_result(tmp_path / "r.json").facts
    assert facts["graph, constant weights, batch 1: status"] == "ran"
    assert facts["litert, constant weights, batch 1: status"] == "refused"
    (agreement,) = read_result(tmp_path / "r.json").agreements
    assert agreement.tolerance == 0.5


def test_a_run_in_which_nothing_ran_tells_why_and_fails(code, tmp_path, capfd, monkeypatch):
    genuine = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else genuine(name, *rest)
    )
    with pytest.raises(SystemExit) as ended:
        main(["engines", code, "--engine", "onnx", "--threads", "1", "--json", "r.json"])
    told = capfd.readouterr()
    assert ended.value.code == 1
    assert "onnx: not installed: onnx is missing (onnx); pip install 'tfperf[onnx]'" in " ".join(told.out.split())
    assert "no plan ran at batch 1" in told.out
    assert read_result(tmp_path / "r.json").facts["onnx, 1 thread, batch 1: status"] == "not installed"


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A folder of files that are no good."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    np.savez(folder / "shape.npz", x=np.ones((2, 4), "float32"))
    np.savez(folder / "type.npz", x=np.ones((2, 3)))
    np.savez(folder / "name.npz", z=np.ones((2, 3), "float32"))
    np.savez(folder / "empty.npz", x=np.ones((0, 3), "float32"))
    np.savez(folder / "pickled.npz", x=np.array([{}], dtype=object))
    (folder / "text.npz").write_text("no arrays")
    keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x)]).save(folder / "lambda.keras")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "Received: nonsense"),
        (["{code}x"], "expected a function"),
        (["{wrong}/lambda.keras"], "Lambda"),
        (["{wrong}/none.keras"], "does not exist"),
        (["{wrong}"], "expected a SavedModel"),
        (["{code}", "--engine", "torch"], "Received: torch"),
        (["{code}", "--engine", "litert,"], "--engine"),
        (["{code}", "--precision", "float64"], "Received: float64"),
        (["{code}", "--engine", "xla,predict", "--precision", "int8"], "none of predict, xla has int8"),
        (["{code}", "--batch", "0"], "--batch"),
        (["{code}", "--batch", "a"], "--batch"),
        (["{code}", "--batch", "1,,2"], "--batch"),
        (["{code}", "--threads", "x"], "--threads"),
        (["{code}", "--threads", "1,default"], "--threads"),
        (["{code}", "--transform", "prune"], "Received: prune"),
        (["{code}", "--transform", "none,all,x"], "--transform"),
        (["{code}", "--tolerance", "-1"], "--tolerance"),
        (["{code}", "--threads", "-1"], "--threads"),
        (["{code}", "--time-limit", "0"], "--time-limit"),
        (["{code}", "--seed", "-1"], "--seed"),
        (["{code}", "--signature", "other"], "other"),
        (["{code}", "--json", "{wrong}"], "--json: expected a file"),
        (["{code}", "--json", "{wrong}/text.npz/r.json"], "--json: cannot write"),
        (["{code}", "--inputs", "{wrong}/none.npz"], "cannot be read"),
        (["{code}", "--inputs", "{wrong}/text.npz"], "text.npz"),
        (["{code}", "--inputs", "{wrong}/shape.npz"], "(2, 4)"),
        (["{code}", "--inputs", "{wrong}/type.npz"], "float64"),
        (["{code}", "--inputs", "{wrong}/name.npz"], "Found: z"),
        (["{code}", "--inputs", "{wrong}/empty.npz"], "expected an example at least of x"),
        (["{code}", "--inputs", "{wrong}/pickled.npz"], "never loaded"),
    ],
    ids=lambda value: " ".join(value).replace("{code}", "").strip() if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, words, code, wrong, tmp_path, capfd):
    filled = [argument.format(code=code, wrong=wrong) for argument in arguments]
    before = sorted(tmp_path.rglob("*"))
    capfd.readouterr()  # of other tests' TensorFlow
    with pytest.raises(SystemExit) as ended:
        main(["engines", *filled, *(["--json", "r.json"] if "--json" not in arguments else [])])
    told = capfd.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert len(told.err.strip().splitlines()) == 1, told.err
    assert words in told.err
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


def test_an_interrupted_run_leaves_no_process_and_no_file(code, tmp_path, kept):
    options = ["--engine", "litert,onnx", "--threads", "1", "--batch", "1,2,3,4,5,6,7,8"]
    with subprocess.Popen(
        [sys.executable, "-m", "tfperf", "engines", code, *options],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert "measuring 2 plans in turns at batch 1\n" in iter(process.stderr.readline, "")
            workers = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert "Traceback" not in rest
    assert len(workers) >= 2  # of the plans, and perhaps still the one that converted
    assert not [worker for worker in workers if worker.is_running()]
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"my_model.py"}
    assert not list(kept.rglob("*.part"))
