"""Processes that are known by their environment end, whatever Linux and psutil tell of them for a moment."""

import os
import subprocess
import sys

import psutil
import pytest

from tfperf.processes import sweeping
from tfperf.processes.sweeping import end_all_with

DEADLINE = 60
VARIABLE = "TFPERF_TEST_SWEEPING"

PROGRAM = """
import os, subprocess, sys, time
started = [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) for _ in range(2)]
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def family():
    """A program and two more that it has started, all with a variable of their own in their environment."""
    members = []
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM], env={**os.environ, VARIABLE: "ours"}, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            members = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
            assert len(members) == 3
            yield members
        finally:
            for member in members[1:]:
                if member.is_running():
                    member.kill()
            process.kill()


def are_gone(members):
    return not psutil.wait_procs(members, timeout=DEADLINE)[1]


def test_all_with_the_variable_end_and_others_do_not(family):
    end_all_with(VARIABLE, "another's")
    assert all(member.is_running() for member in family)
    end_all_with(VARIABLE, "ours")
    assert are_gone(family)


def test_this_process_stays(family, monkeypatch):
    def environ(process):
        return {VARIABLE: "mine" if process.pid == os.getpid() else "another's"}

    monkeypatch.setattr(psutil.Process, "environ", environ)
    end_all_with(VARIABLE, "mine")
    assert all(member.is_running() for member in family)


def test_one_that_takes_the_place_of_another_ends(family, monkeypatch):
    """Linux tells neither its environment nor its arguments for a moment."""
    looks = []

    def only_later(read, nothing):
        def reading(process):
            if process.pid != family[2].pid or len(looks) == 4:
                return read(process)
            looks.append(process.pid)
            return nothing

        return reading

    monkeypatch.setattr(psutil.Process, "environ", only_later(psutil.Process.environ, {}))
    monkeypatch.setattr(psutil.Process, "cmdline", only_later(psutil.Process.cmdline, []))
    end_all_with(VARIABLE, "ours")
    assert are_gone(family)
    assert len(looks) == 4


def test_one_whose_number_was_anothers_ends(family, monkeypatch):
    """psutil keeps what it knew by a number, and sends no signal to another that has it now."""

    def refuse(process, *_):
        raise psutil.NoSuchProcess(process.pid)

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "send_signal", refuse)
        patch.setattr(psutil.Process, "kill", refuse)
        end_all_with(VARIABLE, "ours")
    assert are_gone(family)


def test_one_that_cannot_be_ended_is_not_waited_for_without_end(family, monkeypatch):
    monkeypatch.setattr(sweeping, "DEADLINE", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        end_all_with(VARIABLE, "ours")
    assert all(member.is_running() for member in family)
