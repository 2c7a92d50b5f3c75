"""Python programs run as elastic ranks: as Python itself would run them, and which commands are left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="needs Horovod")

from tfperf.parallel.launch.elastic import MODULE, with_local_services

DEADLINE = 60
HERE = str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    ("words", "at"),
    [
        (["train.py", "--flag", "-m"], 0),
        (["-u", "-OO", "train.py"], 2),
        (["-P", "-m", "train", "x"], 1),
        (["-c", "pass"], 0),
    ],
)
@pytest.mark.parametrize("program", ["python", sys.executable])
def test_programs_of_this_python_are_run_so(program, words, at):
    assert with_local_services([program, *words], HERE) == [program, *words[:at], "-m", MODULE, *words[at:]]


@pytest.mark.parametrize(
    "command",
    [["sh", "train.sh"], ["python"], ["python", "-"], ["python", "-I", "x.py"], ["python", "-X", "dev", "x.py"]],
)
def test_other_commands_are_left_alone(command):
    assert with_local_services(command, f"{HERE}{os.pathsep}{os.defpath}") == command


def test_another_python_is_left_alone(tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    command = ["python", "train.py"]
    assert with_local_services(command, str(tmp_path)) == command


SHOW = """
import os, sys
import helper
print(__name__, sys.argv, sys.path[0] and os.path.realpath(sys.path[0]), helper.WORD)
if __name__ == "__main__":
    sys.exit(3)
"""


@pytest.fixture
def programs(tmp_path):
    """A folder with a program and a module, beside each of which is a module that it imports."""
    for folder in (tmp_path, tmp_path / "scripts"):
        folder.mkdir(exist_ok=True)
        (folder / "helper.py").write_text(f"WORD = {folder.name!r}")
        (folder / "show.py").write_text(SHOW)
    return tmp_path


@pytest.mark.parametrize("words", [["scripts/show.py", "a b", "-c"], ["-m", "show", "-m"], ["-c", SHOW, "x"]])
@pytest.mark.parametrize("options", [[], ["-P"]])
def test_a_program_notices_no_difference(programs, options, words):
    environment = os.environ | {"HOROVOD_GLOO_IFACE": "lo", "PYTHONPATH": str(programs)}
    command = [sys.executable, *options, *words]
    plain, rank = (
        subprocess.run(one, cwd=programs, env=environment, capture_output=True, text=True, timeout=DEADLINE)
        for one in (command, with_local_services(command, HERE))
    )
    assert rank.stdout == plain.stdout != ""
    assert rank.returncode == plain.returncode == 3
    assert rank.stderr == plain.stderr == ""
