"""`tfperf doctor`: its exit codes, on a terminal and off it, and what is left behind when it is interrupted."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import psutil
import pytest

DEADLINE = 120

TENSORFLOW = """
import types
__version__ = "2.21.0"
class Result(float):
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
sysconfig = types.SimpleNamespace(get_build_info=lambda: {"is_cuda_build": False})
config = types.SimpleNamespace(list_physical_devices=lambda kind: [])
constant = list
function = lambda f, **options: lambda x: Result(17.0)
"""

KERAS = (
    'import types\n__version__ = "[bold]\\xfc\\x1b[2J"\nbackend = types.SimpleNamespace(backend=lambda: "tensorflow")\n'
)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A function that puts modules before the installed ones: name -> source. TensorFlow and Keras are quick fakes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)

    def modules(**sources):
        for name, source in ({"tensorflow": TENSORFLOW, "keras": KERAS} | sources).items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")

    modules()
    return modules


def test_a_machine_that_is_fit_is_0_and_names_are_no_markup(tfperf_command, modules, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # as in a plain container: what it cannot show is a question mark
    modules(rich="raise ImportError('[bold]rich is broken')")  # lines instead of a table
    result = tfperf_command("doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "ok       Keras: [bold]?\\x1b[2J, backend tensorflow\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("fit (")


def test_what_is_needed_and_is_not_well_is_1_and_no_traceback(tfperf_command, modules):
    """A TensorFlow that crashes; without SciPy nothing can be measured."""
    modules(tensorflow="import os; os.kill(os.getpid(), 11)", scipy="raise ImportError('[bold]scipy is broken')")
    result = tfperf_command("doctor")
    assert result.returncode == 1
    assert "unfit    TensorFlow: its process was ended by SIGSEGV" in result.stdout
    assert "unfit    machine: cannot be examined: ImportError: [bold]scipy is broken\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("not fit: ")
    assert "Traceback" not in result.stderr


def on_a_terminal(command, **options):
    """Run a command on a terminal of its own; (exit code, all that it wrote there)."""
    ours, its = pty.openpty()
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True, **options)
    os.close(its)
    written, until = b"", time.monotonic() + DEADLINE
    try:
        while time.monotonic() < until and select.select([ours], [], [], until - time.monotonic())[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # the other end was closed
                break
        return process.wait(max(1.0, until - time.monotonic())), written.decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def test_a_terminal_gets_a_table_and_sees_what_is_looked_at(modules, tmp_path):
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    code, written = on_a_terminal([sys.executable, "-m", "tfperf", "doctor"], cwd=tmp_path, env=environment)
    assert code == 0
    assert "looking at" in written
    assert "✓ ok" in written
    assert "[bold]ü\\x1b[2J, backend tensorflow" in written
    assert "\x1b[32m" in written
    assert "\x1b[2J" not in written


HANGING = """
import os, subprocess, time
child = subprocess.Popen(["/bin/sleep", "600"])
with open({file!r} + ".part", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({file!r} + ".part", {file!r})
time.sleep(600)
"""


@pytest.fixture
def hanging(modules, tmp_path):
    """`tfperf doctor` with a TensorFlow that hangs: (its process, the processes it started)."""
    file = tmp_path / "pids"
    modules(tensorflow=HANGING.format(file=str(file)))
    process = subprocess.Popen(
        [sys.executable, "-m", "tfperf", "doctor"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    started = []
    try:
        until = time.monotonic() + DEADLINE
        while not file.exists():
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < until
            time.sleep(0.05)
        started = [psutil.Process(int(pid)) for pid in file.read_text().split()]
        yield process, started
    finally:
        for member in [*started, psutil.Process(process.pid)] if process.poll() is None else started:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.stdout.close()
        process.wait(DEADLINE)


def all_gone(processes):
    """Whether they have ended; one that nobody reaped is a zombie for ever in some containers."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        if not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.05)
    return False


def signalled(process, number):
    """Send a signal, and again where a destructor that it interrupts loses it; all that the process wrote."""
    for _ in range(4):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=DEADLINE / 4)[0]
    raise AssertionError("expected an end")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interruption_ends_tensorflows_process_too(hanging, number, code):
    process, started = hanging
    output = signalled(process, number)
    assert process.returncode == code, output
    assert "Traceback" not in output or "Exception ignored" in output
    assert all_gone(started)


def test_this_machine_is_fit_and_json_is_for_programs(tfperf_command):
    """One real run: the tests need what tfperf needs."""
    result = tfperf_command("doctor", "--json")
    assert result.returncode == 0, result.stdout
    printed = json.loads(result.stdout)
    assert printed.keys() == {"fit", "findings"}
    assert printed["fit"] is True
    for finding in printed["findings"]:
        assert finding.keys() == {"subject", "state", "found", "mend"}
        assert finding["state"] in ("ok", "note")
    real = {finding["subject"]: finding for finding in printed["findings"]}
    assert {"Python", "package numpy", "Keras", "GPU", "CPU", "Horovod"} <= real.keys()
    assert "imports" in real["TensorFlow"]["found"]
    assert real["Keras"]["found"].endswith("backend tensorflow")
    assert real["XLA"]["state"] == "ok"
    assert real["data set digits"]["state"] == "ok"
