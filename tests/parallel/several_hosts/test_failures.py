"""What goes wrong between hosts: one line that names the host, in half a minute, and nothing left on either."""

import contextlib
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

import tfperf

pytest.importorskip("horovod", reason="needs Horovod")
pytestmark = pytest.mark.timeout(100)

LAUNCH = [sys.executable, "-m", "tfperf", "launch", "--network-interfaces", "eth0"]
PROMISED = 30
"""Seconds in which a fault is told."""


def lines(output):
    """What a launch said, without the warning that each launch over the network begins with."""
    first, *rest = output.splitlines()
    assert first.startswith("tfperf launch: warning: this run uses the network")
    return rest


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("nobody", "cannot reach nobody through ssh without a password (ssh: connect to host nobody port 22: "),
        ("unknown", "cannot reach unknown through ssh without a password (ssh: Could not resolve hostname unknown"),
        ("refused", "cannot reach refused through ssh without a password (guest@node2: Permission denied"),
        ("stranger", "cannot reach stranger through ssh without a password (Host key verification failed"),
    ],
)
def test_a_host_out_of_reach(two_hosts, host, words):
    code, output = two_hosts.node1.run(*LAUNCH, "-H", f"node1:1,{host}:1", "echo", "started", deadline=PROMISED)
    assert code == 2
    (line,) = lines(output)
    assert words in line
    assert line.endswith(f"; try `ssh {host} true`")


@pytest.fixture
def node2_without(two_hosts):
    """A function that hides a folder on node2, until the end of the test."""
    hidden = []

    def node2_without(folder):
        assert two_hosts.node2.run("mount", "-t", "tmpfs", "none", folder)[0] == 0
        hidden.append(folder)

    yield node2_without
    for folder in hidden:
        assert two_hosts.node2.run("umount", folder)[0] == 0


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (Path(sys.executable).parent, "not found|No such file"),
        (Path(tfperf.__file__).parent, "ModuleNotFoundError: No module named 'tfperf"),
    ],
)
def test_a_host_without_this_python_or_tfperf(two_hosts, node2_without, folder, words):
    node2_without(folder)
    code, output = two_hosts.node1.run(*LAUNCH, "-H", "node1:1,node2:1", "echo", "started", deadline=PROMISED)
    assert code == 2
    (line,) = lines(output)
    assert f"expected {sys.executable} with tfperf on node2, as on this machine: " in line
    assert re.search(words, line)


WAIT = "import os, signal; print('up', os.environ['HOROVOD_RANK'], flush=True); signal.pause()"


@pytest.fixture
def waiting(two_hosts):
    """A launch from node1 with a rank on each host, and the rank on node2; both ranks wait."""
    with two_hosts.node1.start(*LAUNCH, "-H", "node1:1,node2:1", "python", "-c", WAIT) as launch:
        try:
            said = []
            while sum("up" in line for line in said) < 2:
                said.append(launch.stdout.readline())
                assert said[-1], said
            (rank,) = [process for process in two_hosts.node2.processes() if process.cmdline()[1:] == ["-c", WAIT]]
            yield launch, rank
        finally:
            launch.kill()


def test_a_rank_killed_on_the_other_host(two_hosts, waiting):
    launch, rank = waiting
    rank.kill()
    output, _ = launch.communicate(timeout=PROMISED)
    assert output == "tfperf launch: rank 1 on node2 was killed by SIGKILL; the other ranks were ended\n"
    assert launch.returncode == 128 + signal.SIGKILL
    assert two_hosts.left() == []


def test_a_launch_killed(two_hosts, waiting):
    for process in two_hosts.node1.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends with those killed before it
            if "launch" in process.cmdline():
                process.kill()
    assert two_hosts.left() == []


def test_a_cable_pulled(two_hosts, waiting):
    launch, _ = waiting
    assert two_hosts.node1.run("ip", "link", "set", "eth0", "down")[0] == 0
    try:
        output, _ = launch.communicate(timeout=PROMISED)
    finally:
        assert two_hosts.node1.run("ip", "link", "set", "eth0", "up")[0] == 0
    assert output.splitlines()[-1] == (
        "tfperf launch: rank 1 on node2 is lost: ssh has no connection to it any more, or it ended with exit code 255; "
        "the other ranks were ended"
    )
    assert two_hosts.node1.processes() == []
