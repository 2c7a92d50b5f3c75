"""`tfperf` itself: help, bad input, and what starting it loads."""

import subprocess
import sys

import pytest

COMMANDS = (
    "list", "run", "env", "data", "compare", "horovod", "launch", "doctor", "export", "verify",
    "engines", "tune", "report", "hardware", "explain", "scale",
)  # fmt: skip


def test_help_names_every_command(tfperf_command):
    result = tfperf_command("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in result.stdout


def test_no_command_is_help(tfperf_command):
    result = tfperf_command()
    assert result.returncode == 0
    assert result.stdout == tfperf_command("--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(tfperf_command, command):
    result = tfperf_command(command, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) > 2
    assert result.stderr == ""


def test_help_loads_nothing_slow():
    code = (
        "import sys, contextlib\n"
        "from tfperf.cli import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "slow = {'tensorflow', 'keras', 'numpy', 'scipy', 'pydantic', 'matplotlib', 'rich', 'requests'}\n"
        "print('slow:', sorted(slow & sys.modules.keys()))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.endswith("slow: []\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "nonsense"),
        (["env", "--nonsense"], "--nonsense"),
        (["env", "extra"], "extra"),
        (["data", "cifar"], "cifar"),
        (["compare", "only_one.json"], "Missing argument"),
        (["run"], "name of a recipe"),
        (["run", "--quick"], "name of a recipe"),
        (["run", "hybridise"], "hybridize"),
        (["run", "hybridize", "save_model", "--json", "x.json"], "--json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tfperf_command, arguments, words):
    result = tfperf_command(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("tfperf: ")
    assert words in result.stderr
