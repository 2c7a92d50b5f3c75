"""The keeper: a rank, its exit code, and nothing left of it."""

import os
import signal
import subprocess
import sys
import uuid

import psutil
import pytest

from tests.fixtures.marked import MARK, end_marked, marked

DEADLINE = 60

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
"""A program that SIGTERM does not end."""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
"""
"""A program that leaves one in a session of its own behind."""

GRANDPARENT = """
import signal, subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:3]])
print("up", flush=True)
if sys.argv[3] == "stay":
    signal.pause()
sys.exit(5)
"""
"""A program with an orphaned grandchild."""


@pytest.fixture
def keeper():
    """A function that starts a keeper with a pipe as its lifeline; all is killed at the end of the test."""
    started = []
    token = uuid.uuid4().hex

    def keeper(*command, grace=5):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tfperf.processes.keeper", "0", str(grace), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {MARK: token},
        )
        started.append(process)
        return process

    keeper.descendants = lambda: [p for p in marked(token) if p.pid not in {s.pid for s in started}]
    yield keeper
    end_marked(token)
    for process in started:
        process.wait(DEADLINE)
        process.stdout.close()
        process.stdin.close()


def gone(processes):
    return not psutil.wait_procs(processes, timeout=DEADLINE)[1]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os; os.abort()", 134),
    ],
)
def test_its_exit_code_is_the_commands(keeper, program, code):
    assert keeper(sys.executable, "-S", "-c", program).wait(DEADLINE) == code


def test_a_command_that_is_over_at_once_is_not_missed(keeper):
    for _ in range(5):
        assert keeper("true").wait(DEADLINE) == 0
        assert keeper("false").wait(DEADLINE) == 1


@pytest.mark.parametrize(("command", "code"), [("no-such-command-at-all", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_started_is_one_line(keeper, command, code):
    process = keeper(command)
    assert process.wait(DEADLINE) == code
    (line,) = process.stdout.read().splitlines()
    assert command in line


def test_the_command_has_no_input(keeper):
    process = keeper(sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))")
    assert process.stdout.read() == "''\n"


def test_the_end_of_its_lifeline_ends_a_command_that_does_not_hear(keeper):
    process = keeper(sys.executable, "-c", DEAF)
    assert process.stdout.readline() == "up\n"
    descendants = keeper.descendants()
    assert len(descendants) == 1
    process.stdin.close()
    assert process.wait(DEADLINE) == 128 + signal.SIGKILL
    assert gone(descendants)


def test_a_command_is_asked_before_it_is_killed(keeper):
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(1, flush=True); signal.pause()"
    process = keeper(sys.executable, "-c", f"import signal, sys; {program}", grace=60)
    assert process.stdout.readline()
    process.stdin.close()
    assert process.wait(DEADLINE) == 7


def test_sigterm_ends_keeper_and_command(keeper):
    process = keeper(sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()", grace=60)
    assert process.stdout.readline()
    process.terminate()
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM


def test_what_a_command_leaves_behind_is_ended(keeper):
    process = keeper(sys.executable, "-c", GRANDPARENT, PARENT, DEAF, "go")
    assert process.wait(DEADLINE) == 5
    assert not keeper.descendants()


def test_the_end_of_its_lifeline_ends_orphaned_grandchildren(keeper):
    process = keeper(sys.executable, "-c", GRANDPARENT, PARENT, DEAF, "stay", grace=15)  # which the deaf one waits out
    assert process.stdout.readline() == "up\n"
    descendants = keeper.descendants()
    assert len(descendants) == 2
    process.stdin.close()
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM
    assert not keeper.descendants()


def test_a_command_dies_with_a_killed_keeper(keeper):
    process = keeper(sys.executable, "-c", DEAF)
    assert process.stdout.readline() == "up\n"
    descendants = keeper.descendants()
    process.kill()
    assert gone(descendants)


def test_where_the_system_tells_of_no_processes_the_group_of_the_command_ends():
    """A stand-in for macOS."""
    keep = "import sys; from tfperf.processes import keeper; keeper.PROCESSES = '/nowhere'; "
    keep += "sys.exit(keeper.keep(0, 0.3, sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", keep, sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(DEADLINE) == 128 + signal.SIGKILL
