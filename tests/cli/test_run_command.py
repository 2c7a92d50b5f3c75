"""`tfperf run`: recipes in processes of their own, which end when it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

DEADLINE = 120


def test_a_recipes_help_is_passed_on(tfperf_command):
    result = tfperf_command("run", "hybridize", "--help")
    assert result.returncode == 0
    for flag in ("--quick", "--json", "--batch", "--seed", "--time-limit"):
        assert flag in result.stdout


def test_a_recipes_own_flags_are_in_its_help(tfperf_command):
    assert "--epochs" in tfperf_command("run", "mnist_mixed_mirrored", "--help").stdout


def test_a_wrong_flag_is_one_line_and_2(tfperf_command):
    result = tfperf_command("run", "hybridize", "--batch", "0")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("tfperf run hybridize: argument --batch: expected")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--all", "--batch", "3"], "--batch"),
        (["--all", "hybridize"], "hybridize"),
        (["hybridize", "--all"], "hybridize"),
        (["--all", "--seed", "x"], "--seed"),
        (["--all", "--json", "x.json"], "--json"),
    ],
)
def test_all_takes_no_flag_of_some_recipes_alone(tfperf_command, tmp_path, arguments, words):
    result = tfperf_command("run", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("tfperf run --all: ")
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_all_needs_a_folder_to_write_in(tfperf_command, tmp_path):
    (tmp_path / "results").write_text("a file")
    result = tfperf_command("run", "--all", "--quick")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_help_of_all_names_the_shared_flags(tfperf_command):
    result = tfperf_command("run", "--all", "--help")
    assert result.returncode == 0
    assert "--quick" in result.stdout
    assert "--batch" not in result.stdout


@pytest.fixture
def running(tmp_path):
    """A long recipe under `tfperf run`, in a process group of its own, which is killed at the end of the test."""
    command = [sys.executable, "-m", "tfperf", "run", "hybridize", "--time-limit", "600"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        for line in process.stdout:
            if "at most 600 s" in line:
                break
        assert process.poll() is None, "the recipe ended before it measured"
        yield process
    finally:
        for member in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
            member.kill()
        process.kill()
        process.stdout.close()
        process.wait(DEADLINE)


def children_gone(children, deadline=DEADLINE):
    gone, alive = psutil.wait_procs(children, timeout=deadline)
    return len(gone) == len(children) and not alive


def test_ctrl_c_ends_all_and_writes_nothing(running, tmp_path):
    children = psutil.Process(running.pid).children(recursive=True)
    assert children
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    output = running.stdout.read()
    assert running.wait(DEADLINE) == 130
    assert "interrupted" in output
    assert "Traceback" not in output
    assert children_gone(children)
    assert not list(Path(tmp_path).rglob("*.json"))


def test_sigterm_ends_the_recipe_too(running):
    children = psutil.Process(running.pid).children(recursive=True)
    assert children
    os.kill(running.pid, signal.SIGTERM)  # to `tfperf` alone, not to its group
    assert running.wait(DEADLINE) == 128 + signal.SIGTERM
    assert children_gone(children)
