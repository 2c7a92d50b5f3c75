"""What reaches ranks on two hosts, and how they are found."""

import sys

import pytest

from tfperf.parallel.launch.manifest import HOSTFILE, mpi_job

pytest.importorskip("horovod", reason="needs Horovod")
pytestmark = pytest.mark.timeout(100)

LAUNCH = [sys.executable, "-m", "tfperf", "launch"]


def test_the_interface_that_they_share_is_found(two_hosts):
    code, output = two_hosts.node1.run(
        *LAUNCH, "-H", "node1:1,node2:2", "sh", "-c", "hostname; echo $HOROVOD_GLOO_IFACE"
    )
    assert code == 0, output
    warning, *lines = output.splitlines()
    assert "helpers listen on all interfaces" in warning
    assert sorted(lines) == sorted(
        f"[{rank}] {words}" for rank, host in enumerate(("node1", "node2", "node2")) for words in (host, "eth0")
    )


def test_the_launcher_of_a_manifest_does_what_its_pods_would(two_hosts, tmp_path):
    """The operator writes the file with the hosts; in a pod the launcher is none of them."""
    job = mpi_job(["sh", "-c", "echo $HOROVOD_HOSTNAME '$(A)'"], image="none", ranks=2)
    (launcher,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    (tmp_path / "hostfile").write_text("node1 slots=1\nnode2 slots=1\n")
    words = [word.replace(HOSTFILE, str(tmp_path / "hostfile")).replace("$$", "$") for word in launcher["command"]]
    assert words[:2] == ["tfperf", "launch"]
    code, output = two_hosts.node1.run(*LAUNCH, *words[2:])
    assert code == 0, output
    assert sorted(output.splitlines()[1:]) == ["[0] node1 $(A)", "[1] node2 $(A)"]


ETH0 = ["--network-interfaces", "eth0"]
SHOW = "import os, sys, time; time.sleep(1); print(sys.argv[1:], len(os.environ['LONG']), repr(os.environ['ODD']))"


def test_variables_are_as_long_as_they_are_and_in_no_list_of_processes(two_hosts):
    """Two of 100 kB: an argument of a process, as ssh would pass them in, ends at 128 kB."""
    variables = {"LONG": "secret" * 16_000, "LONG_TOO": "secret" * 16_000, "ODD": "a\n'b' $c \u00e9"}
    options = [*ETH0, "-H", "node2:1", *(word for name in variables for word in ("--export", name))]
    with two_hosts.node1.start(*LAUNCH, *options, "python", "-c", SHOW, "$x 'y'", **variables) as launch:
        listed = []
        while launch.poll() is None:
            listed += two_hosts.node2.command_lines()
        *_, last = launch.stdout.read().splitlines()
    assert last == f"""["$x 'y'"] 96000 {variables["ODD"]!r}"""
    assert any(SHOW in command for command in listed)
    assert not any("secret" in word for command in listed for word in command)
