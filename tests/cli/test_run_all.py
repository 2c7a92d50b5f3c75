"""`tfperf run --all`: every recipe in turn, one table, and no process left."""

import contextlib
import io
import json
import subprocess
import sys

import psutil
import pytest
from rich.console import Console

from tfperf.cli import run_all
from tfperf.cookbook import list_recipes, read_header
from tfperf.doctor import Finding, State
from tfperf.measure.results import Result, write_result

DEADLINE = 120
HEADER = '''"""Why?

Source: none
Claim: c
Holds not: h
Needs: {needs}
Time: t
Shows: f
Try: more: slower.
"""


def f(): ...


'''
EXTRAS = [
    "numpy",
    "pytest; extra == 'here'",
    "no-such-package>=3; extra == 'toys'",
    "tfperf[here,toys]; extra == 'all'",
]
HOROVOD = Finding("Horovod", State.NOTE, "not installed", "tfperf horovod install")
HANG = "import signal; signal.pause()\n"
RUN_ALL = """
import json, pathlib, sys
from tfperf.cli.run_all import run_all
sys.exit(run_all({name: pathlib.Path(path) for name, path in json.loads(sys.argv[1]).items()}, []))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def recipe(folder):
    """A function that writes a recipe of these lines; its file."""

    def recipe(name, code, needs="TensorFlow."):
        path = folder / f"{name}.py"
        path.write_text(HEADER.format(needs=needs) + code)
        return path

    return recipe


@pytest.fixture
def measuring(folder, environment):
    """A function: code that writes a result in which these sentences are."""

    def measuring(name, *meaning):
        write_result(folder / f"{name}.made", Result(name=name, environment=environment, meaning=meaning))
        return f"import shutil; shutil.copy('{name}.made', 'results/{name}.json')\n"

    return measuring


def rows(output, names):
    """name -> its row, of a table."""
    table = output[output.index("what it found") :].splitlines()
    return {name: line for line in table for name in names if line.startswith(f"{name} ")}


def test_one_table_of_all(recipe, measuring, monkeypatch, capsys):
    monkeypatch.setattr(run_all.metadata, "requires", lambda _: ["no-such-package; extra == 'toys'"])
    recipes = {
        "good": recipe("good", measuring("good", "It is [bold] and 2.0 times as fast.", "More.")),
        "wrong": recipe("wrong", "import sys; print('wrong: the answers differ', file=sys.stderr); sys.exit(2)\n"),
        "broken": recipe("broken", "print('\\x1b[31mred'); raise ValueError('no \\x1b[2J way')\n"),
        "toyless": recipe("toyless", "import no_such_package\n", needs="TensorFlow; pip install 'tfperf[toys]'."),
        "gpu": recipe("gpu", "print('skipped: no GPU')\n"),
    }
    assert run_all.run_all(recipes, ["--quick"]) == 1
    output = capsys.readouterr().out
    found = rows(output, recipes)
    assert [line for line in output.splitlines() if line.startswith("[")] == [
        f"[{number}/5] {name}" for number, name in enumerate(recipes, start=1)
    ]
    assert "done" in found["good"]
    assert "It is [bold] and 2.0 times as fast." in found["good"]
    assert "More" not in output
    assert "failed" in found["wrong"]
    assert "exit code 2: wrong: the answers differ" in found["wrong"]
    assert "ValueError" in found["broken"]
    assert "\x1b" not in output
    assert "skipped" in found["toyless"]
    assert "no-such-package: not installed" in found["toyless"]
    assert "skipped" in found["gpu"]
    assert "no GPU" in found["gpu"]
    assert "1 done, 2 skipped, 2 failed; " in output


def test_flags_go_to_each_and_output_to_its_log(recipe, folder):
    recipes = {name: recipe(name, "import sys; print(*sys.argv[1:], 'ä')\n") for name in ("one", "two")}
    assert run_all.run_all(recipes, ["--quick", "--seed", "3"]) == 0
    for name in recipes:
        assert (folder / "results" / f"{name}.log").read_text() == "--quick --seed 3 ä\n"


def test_the_result_of_another_day_does_not_count(recipe, measuring, folder, capsys):
    recipes = {"one": recipe("one", measuring("one", "Found."))}
    assert run_all.run_all(recipes, []) == 0
    assert "done" in rows(capsys.readouterr().out, recipes)["one"]
    recipe("one", "print('nothing today')\n")
    assert run_all.run_all(recipes, []) == 0
    assert "nothing today" in rows(capsys.readouterr().out, recipes)["one"]


def test_a_result_that_cannot_be_read_is_a_failure(recipe, capsys):
    recipes = {"one": recipe("one", "open('results/one.json', 'w').write('{}')\n")}
    assert run_all.run_all(recipes, []) == 1
    assert "is not a result file" in rows(capsys.readouterr().out, recipes)["one"]


def test_what_hangs_is_ended_and_the_next_one_runs(recipe, folder, capsys):
    hanging = "import os; open('pid', 'w').write(str(os.getpid()))\n" + HANG
    recipes = {"hanging": recipe("hanging", hanging), "next": recipe("next", "print('I ran')\n")}
    assert run_all.run_all(recipes, [], deadline=10.0) == 1
    found = rows(capsys.readouterr().out, recipes)
    assert "did not end within 10 s" in found["hanging"]
    assert "I ran" in found["next"]
    assert not psutil.pid_exists(int((folder / "pid").read_text()))


def test_what_a_recipe_leaves_running_is_ended(recipe, folder):
    code = f"""
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {HANG!r}], start_new_session=True)
open("pid", "w").write(str(process.pid))
"""
    assert run_all.run_all({"one": recipe("one", code)}, []) == 0
    assert not psutil.pid_exists(int((folder / "pid").read_text()))


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_the_end_of_the_command_ends_what_runs(recipe, folder, number, code):
    signalling = f"""
import os, psutil, signal
open("pid", "w").write(str(os.getpid()))
print("started", flush=True)
psutil.Process().parent().parent().send_signal(signal.{number})
"""
    recipes = {"one": recipe("one", "print('fine')\n"), "two": recipe("two", signalling + HANG)}
    recipes["three"] = recipe("three", "print('never')\n")
    arguments = [sys.executable, "-c", RUN_ALL, json.dumps({name: str(path) for name, path in recipes.items()})]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE, start_new_session=True)
    assert process.returncode == code
    assert "Traceback" not in process.stderr
    if number == "SIGINT":
        found = rows(process.stdout, recipes)
        assert "fine" in found["one"]
        assert "interrupted" in found["two"]
        assert "three" not in found
        assert "1 skipped, 1 interrupted, 1 not begun; " in process.stdout
    pid = int((folder / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):  # after SIGKILL its keeper notices in a moment
        gone, _ = psutil.wait_procs([psutil.Process(pid)], timeout=DEADLINE)
        assert gone


def test_a_terminal_gets_a_bar(recipe, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(run_all, "Console", lambda **options: Console(file=screen, force_terminal=True, **options))
    assert run_all.run_all({"one": recipe("one", "print('fine')\n")}, []) == 0
    assert "0/1" in screen.getvalue()
    assert "[1/1] one" not in screen.getvalue()


# What a recipe's header asks for and this environment lacks


@pytest.fixture
def environment_without(monkeypatch):
    """An environment with other extras, without Horovod, and with all that Spark needs."""
    monkeypatch.setattr(run_all.metadata, "requires", lambda name: {"tfperf": EXTRAS}[name])
    monkeypatch.setattr(run_all, "examine_horovod", lambda: [HOROVOD])
    monkeypatch.setattr(run_all, "examine_spark", lambda: [Finding("Java", State.OK, "version 17")])
    monkeypatch.setattr(run_all, "examine_data", lambda names: [Finding(f"data set {names[0]}", State.OK, "here")])


@pytest.mark.usefixtures("environment_without")
@pytest.mark.parametrize(
    "text",
    [
        "TensorFlow; no GPU, no data.",
        "TensorFlow; pip install 'tfperf[here]'",
        "Java 17 or newer; pip install 'tfperf[spark]'; real images (tfperf data fashion_mnist)",
        "TensorFlow; toys where they are installed (pip install 'tfperf[toys]'); no GPU.",
        "",
    ],
)
def test_nothing_lacks(text):
    assert run_all.lacking(text) == ""


@pytest.mark.usefixtures("environment_without")
@pytest.mark.parametrize("extra", ["toys", "all"])
def test_a_package_of_an_extra_lacks(extra):
    words = run_all.lacking(f"TensorFlow; pip install 'tfperf[{extra}]'; no GPU")
    assert words.startswith("package no-such-package: not installed")
    assert "pip install" in words


@pytest.mark.usefixtures("environment_without")
def test_horovod_lacks():
    assert (
        run_all.lacking("TensorFlow; Horovod (tfperf horovod install)")
        == "Horovod: not installed; tfperf horovod install"
    )


@pytest.mark.usefixtures("environment_without")
def test_data_lacks(monkeypatch):
    absent = Finding("data set fashion_mnist", State.NOTE, "not on this machine yet", "tfperf data fashion_mnist")
    monkeypatch.setattr(run_all, "examine_data", lambda names: [absent] if names == ["fashion_mnist"] else [])
    assert run_all.lacking(read_header(list_recipes()["quantize_int8"]).needs) == (
        "data set fashion_mnist: not on this machine yet; tfperf data fashion_mnist"
    )


@pytest.mark.usefixtures("environment_without")
def test_java_lacks(monkeypatch):
    java = Finding("Java", State.NOTE, "none; Spark needs version 17 or later")
    monkeypatch.setattr(run_all, "examine_spark", lambda: [java])
    assert (
        run_all.lacking(read_header(list_recipes()["mnist_spark"]).needs)
        == "Java: none; Spark needs version 17 or later"
    )


@pytest.mark.usefixtures("environment_without")
def test_the_recipes_name_what_they_need_so_that_it_is_found():
    without_horovod = {name for name, path in list_recipes().items() if run_all.lacking(read_header(path).needs)}
    assert {"mnist_hvd", "mnist_hvd_elastic", "mnist_spark"} <= without_horovod
    assert "deploy_engines" not in without_horovod
