"""The end of a launch whose signals come at the worst moments, each of them forced; it never hangs."""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("horovod", reason="needs Horovod")

from tfperf.errors import HorovodError
from tfperf.parallel.launch import Ending, Job, launch
from tfperf.parallel.launch.ending import LaunchEnded, watched
from tfperf.parallel.launch.rendezvous import Rendezvous

PROMISED = 15
"""Seconds in which all is gone after a signal."""

REPEATS = 3

FAMILY = """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("up", os.getpid(), flush=True)
signal.pause()
"""

BEGIN = """
import os, signal, sys, threading, time
from tfperf.cli import main

def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    time.sleep(0.3)
"""

ERROR_WITH_THE_FIRST = """
from tfperf.processes import ChildProcess
tell, told = ChildProcess.tell_to_end, []

def tell_or_fail(self):
    told.append(self)
    if len(told) == 1:
        raise RuntimeError("can't start new thread")
    tell(self)

ChildProcess.tell_to_end = tell_or_fail
"""
"""An error while the first rank is told to end."""

TAKEN_BY_ANOTHER_THREAD = """
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
"""
"""The main thread does not wake up for the signal."""

INSIDE_A_LOCK = """
acquire, left = threading.Condition.__enter__, [None] * int(os.environ["LOCKS"])

def acquire_and_interrupt(self):
    value = acquire(self)
    in_main = threading.get_ident() == threading.main_thread().ident
    if in_main and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL and left:
        left.pop()
        if not left:
            interrupt()
    return value

threading.Condition.__enter__ = acquire_and_interrupt
"""
"""The signal comes when the main thread has just taken lock number LOCKS, which would stay locked if it raised."""

BEFORE_THE_SERVER_RUNS = """
init = threading.Thread.__init__

def init_and_interrupt(self, *arguments, target=None, **options):
    init(self, *arguments, target=target, **options)
    if getattr(target, "__name__", "") == "serve_forever":
        interrupt()

threading.Thread.__init__ = init_and_interrupt
"""
"""The signal comes between the rendezvous server and its thread."""


def started(launched, script, interleaving, **variables):
    code = f"{BEGIN}{interleaving}\nmain(sys.argv[1:])"
    return launched("-np", 2, "python", script(FAMILY), tfperf=["-c", code], **variables)


def ends_at_sigterm(launch):
    gone = launch.all_gone(PROMISED)
    return gone and launch.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("_", range(REPEATS))
def test_an_error_with_one_rank_leaves_none_behind(launched, script, _):
    launch = started(launched, script, ERROR_WITH_THE_FIRST)
    launch.read_until("up", times=2)
    launch.process.terminate()
    assert ends_at_sigterm(launch)


@pytest.mark.parametrize("_", range(REPEATS))
def test_a_signal_that_another_thread_takes(launched, script, _):
    launch = started(launched, script, TAKEN_BY_ANOTHER_THREAD)
    launch.read_until("up", times=2)
    launch.process.terminate()
    assert ends_at_sigterm(launch)
    assert launch.errors() == ""


@pytest.mark.parametrize("locks", [1, 2, 3])
def test_a_signal_while_a_lock_is_held(launched, script, locks):
    launch = started(launched, script, INSIDE_A_LOCK, LOCKS=str(locks))
    with contextlib.suppress(AssertionError):  # it ends before
        launch.read_until("up", times=2)
    launch.process.terminate()  # where the main thread takes fewer locks
    assert ends_at_sigterm(launch)
    assert launch.errors() == ""


@pytest.mark.parametrize("_", range(REPEATS))
def test_a_signal_before_the_rendezvous_server_runs(launched, script, _):
    launch = started(launched, script, BEFORE_THE_SERVER_RUNS)
    assert ends_at_sigterm(launch)
    assert launch.errors() == ""


def test_a_rendezvous_that_never_began_ends(monkeypatch):
    with Rendezvous("127.0.0.1"):
        pass
    monkeypatch.setattr(threading.Thread, "start", lambda _: 1 / 0)
    rendezvous = Rendezvous("127.0.0.1")
    with pytest.raises(ZeroDivisionError), rendezvous:
        rendezvous.start()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_every_signal_that_ends(launched, script, number):
    launch = launched("-np", 2, "python", script(FAMILY))
    launch.read_until("up", times=2)
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 128 + number


HANGING = """#!/bin/sh
echo $$ >> asked
if [ -e hang ]; then sleep 600; fi
echo localhost:1
echo 127.0.0.1:1
"""


@pytest.fixture
def hanging(tmp_path):
    """A discovery script that hangs once there is a file `hang`, and a function that waits until it does."""
    path = tmp_path / "hosts.sh"
    path.write_text(HANGING)
    path.chmod(0o755)

    def hanging(now=True):
        (tmp_path / "hang").write_text("")
        asked, before = tmp_path / "asked", len((tmp_path / "asked").read_text()) if not now else 0
        until = time.monotonic() + 60
        while (not asked.exists() or len(asked.read_text()) <= before) and time.monotonic() < until:
            time.sleep(0.05)
        return asked

    hanging.options = ["--host-discovery-script", path]
    return hanging


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_discovery_script_that_hangs_at_the_start(launched, hanging, tmp_path, number):
    (tmp_path / "hang").write_text("")
    launch = launched("-np", 2, *hanging.options, "true")
    hanging()
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_discovery_script_that_hangs_later(launched, script, hanging, number):
    launch = launched("-np", 2, *hanging.options, "python", script(FAMILY))
    launch.read_until("up", times=2)
    hanging(now=False)
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)


DIES = """
print("up", flush=True)
while not os.path.exists("die"):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_that_die_while_a_discovery_script_hangs(launched, script, hanging, tmp_path):
    launch = launched("-np", 2, *hanging.options, "python", script(DIES))
    launch.read_until("up", times=2)
    hanging(now=False)
    (tmp_path / "die").write_text("")
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 128 + signal.SIGKILL
    last = launch.errors().splitlines()[-1]
    assert "[0] was killed by SIGKILL" in last


SSH = """#!{python}
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
with open("connecting", "a") as file:
    file.write("x")
host = next(word for word in sys.argv[1:] if word.endswith(".invalid"))
if host == "silent.invalid" or ("check" not in host and "tfperf.processes.keeper 0" in sys.argv[-1]):
    signal.pause()
os.execvp("sh", ["sh", "-c", sys.argv[-1]])
"""
"""Stands for ssh: to one host it gets no connection, to another one none after the first."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("host", "times"), [("silent", 1), ("lost", 2)])
def test_a_host_that_does_not_answer(launched, tmp_path, monkeypatch, number, host, times):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH.format(python=sys.executable))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    launch = launched("-H", f"{host}.invalid:1", "--network-interfaces", "lo", "python", "-c", "print()")
    connecting = tmp_path / "connecting"
    until = time.monotonic() + 60
    while not (connecting.exists() and len(connecting.read_text()) == times) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(connecting.read_text()) == times
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)
    if number == signal.SIGTERM:
        assert launch.wait() == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_reader_of_the_output_that_stands_still(launched, script, number):
    launch = launched("-np", 2, "python", script("while True: print('words' * 1000, flush=True)"))
    launch.read_until("words")
    time.sleep(1)  # the pipe is full
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)


def test_ctrl_c_in_a_program_that_launches_ends_its_ranks(script, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom tfperf.parallel.launch import Job, launch\n"
        "try:\n    launch(Job(['python', sys.argv[1]], ranks=2))\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, program, script(FAMILY)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            ups = [process.stdout.readline(), process.stdout.readline()]
            assert all("up" in line for line in ups)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=2 * PROMISED)[0] == "interrupted\n"
        finally:
            process.kill()


def test_a_launch_that_is_to_end_starts_nothing(tmp_path):
    ending = Ending()
    ending.ask(signal.SIGTERM)
    failure = launch(Job(["touch", str(tmp_path / "started")], ranks=1), ending)
    assert (failure.words, failure.code) == ("ended by SIGTERM", 143)
    assert not (tmp_path / "started").exists()


def test_the_first_signal_counts():
    ending = Ending()
    ending.ask(signal.SIGTERM)
    ending.ask(signal.SIGINT)
    assert ending.number == signal.SIGTERM


def test_what_a_watched_function_returns_or_raises_is_the_callers():
    assert watched(lambda: 3, Ending()) == 3
    with pytest.raises(HorovodError, match="words"):
        watched(lambda: (_ for _ in ()).throw(HorovodError("words")), Ending())


class InterruptedLook(Ending):
    """Ctrl-C comes while it is looked at."""

    came = False

    @property
    def asked(self):
        if not self.came:
            self.came = True
            raise KeyboardInterrupt
        return super().asked


class InterruptedTwice(InterruptedLook):
    """And once more while the first is noted."""

    again = False

    def ask(self, number=signal.SIGTERM, _=None):
        super().ask(number)
        if not self.again:
            self.again = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [InterruptedLook, InterruptedTwice])
def test_ctrl_c_ends_what_is_watched_between_whichever_lines_it_comes(kind):
    ending, seen = kind(), queue.SimpleQueue()

    def wait_for_the_end():
        while ending.number is None:
            time.sleep(0.01)
        seen.put(ending.number)

    with pytest.raises(KeyboardInterrupt):
        watched(wait_for_the_end, ending, 10.0)
    assert seen.get(timeout=10) == signal.SIGINT


def test_a_watched_function_that_does_not_return_is_left_alone():
    ending, never = Ending(), threading.Event()
    ending.ask()
    with pytest.raises(LaunchEnded):
        watched(never.wait, ending, 0.2)
    never.set()
