"""Names, paths and messages of others: no byte of them reaches the terminal as a command, and no result is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tfperf.cli import main
from tfperf.measure.results import Result, read_document, write_result
from tfperf.search.outcome import Outcome

HOSTILE = "d\x1b[31m\x07\x9b\u202e\u2066 é $x^{$"
"""A colour, a bell, C1's ESC [, two ways to write from right to left, and what Matplotlib takes for mathematics."""

CODE = """
import keras
HOSTILE = "a\\x1b]0;title\\x07\\u202e[red]\\x9b"
def net():
    inputs = keras.Input((4,), name="in" + HOSTILE)
    return keras.Model(inputs, keras.layers.Dense(3, name="d" * 300)(inputs), name="n" * 300)
def unnamed():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="")
def foreign():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="漢" * 300)
def fails():
    raise ValueError(HOSTILE + chr(10) + "second line")
"""

DRIVER = """
import sys
from tfperf.importing import load_tensorflow
load_tensorflow()
import tfperf.search.space as space
import tfperf.search.strategy as strategy
space.DEFAULTS = ()  # they start TensorFlow, twice
strategy.FINAL_SECONDS = strategy.FINAL_SECONDS._replace(value=1.0)
strategy.LOOK_SECONDS = strategy.LOOK_SECONDS._replace(value=0.1)
from tfperf.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfdbinary):
    """A function that runs a command in this process and gives exit code and output, which must be harmless."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hostile.py").write_text(CODE, encoding="utf-8")

    def run(*arguments):
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = (harmless(stream) for stream in capfdbinary.readouterr())
        return ended.value.code, out, err

    return run


def harmless(written):
    text = written.decode("utf-8")
    assert all(letter.isprintable() or letter == "\n" for letter in text), repr(text)
    return text


def test_the_message_of_a_users_code_is_one_harmless_line(run):
    code, out, err = run("export", "hostile.py:fails", "out")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "\\x1b]0;title\\x07\\u202e[red]\\x9b second line" in err


@pytest.mark.parametrize(("function", "name"), [("net", "n" * 100), ("unnamed", "net")])
def test_a_net_of_any_name_is_exported_and_verified(run, tmp_path, function, name):
    folder = Path(HOSTILE)
    code, out, err = run("export", f"hostile.py:{function}", folder)
    assert (code, err) == (0, "")
    assert (folder / name / "1" / "saved_model.pb").exists()
    code, out, _ = run("verify", folder / name)
    assert code == 0
    assert "to the last bit" in out
    (folder / name / "1" / HOSTILE).touch()
    code, out, err = run("verify", folder / name)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "was not exported" in err


@pytest.mark.parametrize(
    "arguments",
    [["export", "{}", "out"], ["export", "hostile.py:net", "{}"], ["verify", "{}"], ["tune", "{}"], ["report", "{}"]],
    ids=" ".join,
)
def test_a_path_that_is_too_long_is_one_line(run, arguments):
    code, out, err = run(*(argument.format("n" * 300) for argument in arguments))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "File name too long" in err


def test_a_name_that_tensorflow_does_not_take_is_one_line(run):
    code, out, err = run("export", "hostile.py:foreign", "out")
    keras.utils.clear_session()  # Keras stays in a name scope that TensorFlow refuses, and puts all later layers there
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "is not a valid root scope name" in err
    assert len(err) < 1000


def test_the_search_of_a_net_of_any_name_keeps_its_result(run, tmp_path):
    folder = Path(HOSTILE) / HOSTILE.replace("/", "")
    assert run("export", "hostile.py:net", folder)[0] == 0
    model = folder / ("n" * 100) / "1"
    options = ["--engine", "frozen", "--threads", "1", "--report", folder / "r.html", "--export", folder / "deployed"]
    environment = os.environ | {"NO_COLOR": "1", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    environment.pop("HOME", None)
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, "tune", model, *options], capture_output=True, timeout=240, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert harmless(ended.stderr) == ""
    last = json.loads(harmless(ended.stdout).splitlines()[-1])
    (target,) = Path("results").iterdir()
    assert last["files"] == [str(target), str(folder / "r.html"), str(folder / "deployed")]
    assert read_document(target, Outcome).winner == "frozen, 1 thread, batch 1"
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert not any(letter in page for letter in "\x1b\x07\x9b\u202e\u2066")


def test_engines_draws_a_net_of_any_name(run):
    folder = Path(HOSTILE)
    assert run("export", "hostile.py:net", folder, "--name", "a$x^{$")[0] == 0
    arguments = ["--engine", "frozen", "--threads", "1", "--time-limit", "0.2", "--json", folder / "r.json"]
    code, _, err = run("engines", folder / "a$x^{$" / "1", *arguments)
    assert code == 0, err
    assert (folder / "r.png").exists()


def test_compare_names_a_hostile_file(run, noisy):
    paths = [Path(HOSTILE), Path(f"{HOSTILE}2")]
    for path, name in zip(paths, ("one", "[red]two"), strict=True):
        write_result(path, Result(name="x", measurements=(noisy("both", 0.01), noisy(name, 0.01))))
    code, out, err = run("compare", *paths)
    assert (code, err) == (0, "")
    assert "'[red]two' is only in d\\x1b[31m\\x07\\x9b\\u202e\\u2066 é $x^{$2" in out.replace("\n", " ")
    assert run("compare", paths[0], f"{HOSTILE}3")[0] == 2
