"""A command behind its keeper: it and all that it started end, whatever happens to any of them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tfperf.processes import PIPE, ChildProcess, child_process, keeper

DEADLINE = 60

FAMILY = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
program = "import os, signal, time; os.setsid(); signal.signal(signal.SIGHUP, signal.SIG_IGN); time.sleep(600)"
other = subprocess.Popen([sys.executable, "-S", "-c", program], env={} if "hidden" in sys.argv else None)
print(os.getpid(), other.pid, flush=True)
if "leaves" not in sys.argv:
    time.sleep(600)
"""
"""A program that starts another, in a session of its own."""

OWNER = """
import os, signal, sys
from tfperf.processes import PIPE, ChildProcess
child = ChildProcess([sys.executable, "-S", "-c", *sys.argv[2:]], stdout=PIPE)
print(child._keeper.pid, *child.stdout.readline().decode().split(), flush=True)
if sys.argv[1] == "stopped":
    child.stop()
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextlib.contextmanager
def family(*arguments, **settings):
    """A child with another process below it, and both of them."""
    with ChildProcess([sys.executable, "-S", "-c", FAMILY, *arguments], stdout=PIPE, **settings) as child:
        yield child, living(child.stdout.readline().split())


def living(numbers):
    """The processes with these numbers that have not ended yet."""
    processes = []
    for number in numbers:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(int(number)))
    return processes


def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes):
    deadline = time.monotonic() + DEADLINE
    while left := [one for one in processes if runs(one)]:
        if time.monotonic() > deadline:
            for one in left:
                one.kill()
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("program", "code"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("raise SystemExit(137)", 137), ("import os; os.abort()", -6)],
)
def test_its_exit_code_is_told_apart_from_a_signal(program, code):
    with ChildProcess(
        [sys.executable, "-S", "-c", f"import resource; resource.setrlimit(4, (0, 0)); {program}"]
    ) as child:
        assert child.wait(DEADLINE) == code
        assert child.poll() == code


@pytest.mark.parametrize(("program", "error"), [("/no/such", FileNotFoundError), ("/etc", PermissionError)])
def test_what_cannot_be_started_is_an_error(program, error):
    with pytest.raises(error) as told:
        ChildProcess([program])
    assert told.value.filename == program


def test_where_no_process_can_be_started_nothing_stays_open(monkeypatch):
    def none_left(*_arguments, **_settings):
        raise BlockingIOError("no process is left")

    ends = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: ends)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", none_left)
        with pytest.raises(BlockingIOError):
            ChildProcess(["true"])
    assert [end.fileno() for end in ends] == [-1, -1]


@pytest.mark.parametrize("arguments", [(), ("deaf",)])
@pytest.mark.parametrize("grace", [0.0, 0.3])
@pytest.mark.parametrize("still", [False, True])
def test_all_of_it_ends_with_the_block(arguments, grace, still):
    with contextlib.suppress(ZeroDivisionError), family(*arguments, grace=grace) as (child, processes):
        if still:
            child.stop()
        raise ZeroDivisionError
    assert gone(processes)


def test_what_it_leaves_running_ends_with_it():
    with family("leaves") as (child, processes):
        assert child.wait(DEADLINE) == 0
        assert gone(processes)


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_it_ends_when_its_owner_is_killed(how):
    command = [sys.executable, "-P", "-c", OWNER, how, FAMILY, "deaf"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(living(done.stdout.split()))


def test_it_ends_when_its_keeper_is_killed():
    with family() as (child, processes):
        os.kill(child._keeper.pid, signal.SIGKILL)
        assert child.wait(DEADLINE) == -signal.SIGKILL
        assert gone(processes)


def test_it_ends_when_its_keeper_stands_still(monkeypatch):
    monkeypatch.setattr(child_process, "LAST_RESORT", 0.3)
    with family() as (child, processes):
        os.kill(child._keeper.pid, signal.SIGSTOP)
        child.end()
        assert gone(processes)


@pytest.mark.parametrize("arguments", [("deaf",), ("deaf", "hidden")])
def test_a_second_ctrl_c_spares_nobody(arguments, monkeypatch):
    def interrupted(seconds=None):
        if seconds is not None:  # while it has its grace
            raise KeyboardInterrupt
        return ChildProcess.wait(child)

    with family(*arguments, grace=100.0) as (child, processes):
        with monkeypatch.context() as patch:
            patch.setattr(child, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                child.end()
        assert gone(processes)


def test_it_stands_still_with_all_that_it_started():
    def states():
        return {one.status() == psutil.STATUS_STOPPED for one in processes}

    with family() as (child, processes):
        with child.stopped():
            assert states() == {True}
        deadline = time.monotonic() + DEADLINE
        while states() != {False}:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_interrupt_is_that_of_a_terminal():
    program = (
        "import time\ntry:\n    print('up', flush=True)\n    while True: time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    exit(5)"
    )
    with ChildProcess([sys.executable, "-c", program], stdout=PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        child.interrupt()
        assert child.wait(DEADLINE) == 5


def test_several_threads_may_wait_and_one_ends_it():
    with family() as (child, _):
        codes = []
        waiting = [threading.Thread(target=lambda: codes.append(child.wait(DEADLINE))) for _ in range(3)]
        for thread in waiting:
            thread.start()
        child.kill()
        for thread in waiting:
            thread.join(DEADLINE)
        assert codes == [-signal.SIGKILL] * 3


def test_a_wait_that_is_too_long_is_an_error_and_ends_nothing():
    with family() as (child, _):
        with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
            child.wait(0.1)
        assert child.poll() is None


def test_a_wait_counts_only_the_time_in_which_this_process_runs(monkeypatch):
    """A leap of the clock, as after Ctrl-Z and fg, takes a second away and no more."""
    leaps = iter([0.0, 0.0, 1e6])
    real = time.monotonic
    monkeypatch.setattr("tfperf.processes.patience.time.monotonic", lambda: real() + next(leaps, 1e6))
    with ChildProcess([sys.executable, "-S", "-c", "import time; time.sleep(0.5)"]) as child:
        assert child.wait(20) == 0


def test_memory_is_that_of_the_whole_family():
    with family() as (child, processes):
        assert child.memory(whole=False) == pytest.approx(processes[0].memory_info().rss, rel=0.5)
        deadline = time.monotonic() + DEADLINE
        while child.memory() < child.memory(whole=False) + 2**20:  # the other one has just been forked
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_number_of_a_keeper_that_has_ended_may_be_anothers(monkeypatch):
    with ChildProcess(["true"]) as over, family():
        assert over.wait(DEADLINE) == 0
        monkeypatch.setattr(over._keeper, "pid", os.getpid())
        assert over.memory() == 0


def test_its_pipes_close_when_it_closes_them():
    program = "import os, time; os.close(1); time.sleep(600)"
    with ChildProcess([sys.executable, "-S", "-c", program], stdout=PIPE) as child:
        assert child.stdout.read() == b""
        assert child.poll() is None


def test_it_takes_sigint_where_this_process_ignores_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        with ChildProcess([sys.executable, "-c", program], stdout=PIPE) as child:
            assert child.stdout.read() == b"True\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_keeper_needs_little_of_the_standard_library():
    code = f"import sys, runpy; runpy.run_path({keeper.__file__!r}); sys.exit('subprocess' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=DEADLINE, check=False).returncode == 0
