"""However a launch ends, all that it started ends with it: ranks, and what they started, in any session."""

import os
import signal

import psutil
import pytest

pytest.importorskip("horovod", reason="needs Horovod")

PROMISED = 15
"""Seconds in which all is gone after a rank, or the launch, was killed."""

FAMILY = """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("up", os.getpid(), flush=True)
signal.pause()
"""

DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def family(launched, script):
    """Two ranks with a child each, under `tfperf launch`; the launch and the ranks' process ids, in their order."""
    launch = launched("-np", 2, "python", script(FAMILY))
    lines = sorted(line for line in launch.read_until("up", times=2) if "up" in line)
    assert [line.split()[0] for line in lines] == ["[0]", "[1]"]
    return launch, [int(line.split()[2]) for line in lines]


def test_a_killed_rank(family):
    launch, ranks = family
    os.kill(ranks[1], signal.SIGKILL)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 137
    assert launch.errors() == "tfperf launch: rank 1 was killed by SIGKILL; the other ranks were ended\n"


def test_a_killed_launch(family):
    launch, _ = family
    launch.process.kill()
    assert launch.all_gone(PROMISED)


def test_a_killed_keeper(family):
    launch, ranks = family
    psutil.Process(ranks[0]).parent().kill()
    assert launch.all_gone(PROMISED)
    assert "rank 0 was killed by SIGKILL" in launch.errors()


def test_ctrl_c(family):
    launch, _ = family
    os.killpg(launch.process.pid, signal.SIGINT)  # as a terminal does
    assert launch.wait() == 130
    assert "Traceback" not in launch.errors()
    assert launch.all_gone(PROMISED)


def test_sigterm(family):
    launch, _ = family
    launch.process.terminate()
    assert launch.wait() == 128 + signal.SIGTERM
    assert launch.errors() == ""
    assert launch.all_gone(PROMISED)


IMPATIENT = """
import os, signal, sys
from tfperf.cli import main
from tfperf.parallel.launch.ranks import Ranks

end = Ranks.end

def end_in_spite_of_a_signal(self):
    os.kill(os.getpid(), signal.SIGTERM)
    end(self)

Ranks.end = end_in_spite_of_a_signal
main(sys.argv[1:])
"""
"""`tfperf`, which gets a second signal as it begins to end its ranks."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_cut_the_ending_short(launched, script, number):
    """Ctrl-C pressed twice; `timeout`, which sends two signals at once."""
    launch = launched("-np", 2, "python", script(FAMILY), tfperf=["-c", IMPATIENT])
    launch.read_until("up", times=2)
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_ranks_that_do_not_hear_are_killed(launched, script, number):
    launch = launched("-np", 2, "python", script(DEAF))
    launch.read_until("up", times=2)
    launch.process.send_signal(number)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == (-number if number == signal.SIGKILL else 128 + number)


def test_a_rank_that_does_not_hear_is_killed_with_the_one_that_died(launched, script):
    launch = launched("-np", 2, "python", script(DEAF))
    lines = launch.read_until("up", times=2)
    (victim,) = [int(line.split()[2]) for line in lines if line.startswith("[1] up")]
    os.kill(victim, signal.SIGKILL)
    assert launch.all_gone(PROMISED)
    assert launch.errors() == "tfperf launch: rank 1 was killed by SIGKILL; the other ranks were ended\n"


def test_a_frozen_rank_is_ended_too(family):
    launch, ranks = family
    os.kill(ranks[0], signal.SIGSTOP)
    os.kill(ranks[1], signal.SIGKILL)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 137


def test_output_that_nobody_reads_ends_all(launched, script):
    launch = launched("-np", 2, "python", script("while True:\n    print('words', flush=True)\n"))
    launch.read_until("words")
    launch.process.stdout.close()  # as `| head -1` does
    assert launch.wait() == 128 + signal.SIGPIPE
    assert launch.all_gone(PROMISED)
    assert "Error" not in launch.errors()


def test_all_ends_well(launched, script):
    launch = launched("-np", 2, "python", script("print('done')"))
    launch.read_until("done", times=2)
    assert launch.wait() == 0
    assert launch.errors() == ""
    assert launch.all_gone(PROMISED)
