"""The two hosts of these tests: names, a link of limited rate, and an end that leaves nothing, however it comes."""

import subprocess
import sys
from pathlib import Path

import psutil

PROMISED = 30

ENDLESS = """
import time

def test(two_hosts):
    two_hosts.node2.start("sleep", "1000")
    while ["sleep", "1000"] not in two_hosts.node2.command_lines():
        time.sleep(0.01)
    print("\\nup", *(process.pid for host in two_hosts for process in (host, *host.processes())), flush=True)
    time.sleep(1000)
"""


def test_each_has_its_name_its_processes_and_a_limited_link_to_the_other(two_hosts):
    for here, there in (tuple(two_hosts), reversed(tuple(two_hosts))):
        assert here.run("hostname") == (0, f"{here.name}\n")
        code, output = here.run("ssh", there.name, "hostname && ps -e -o comm=")
        assert code == 0, output
        name, *programs = output.split()
        assert name == there.name
        assert set(programs) == {"sshd", "ps"}
        assert "tbf" in here.run("tc", "qdisc", "show", "dev", "eth0")[1]


def test_they_end_with_a_run_that_is_killed(two_hosts, tmp_path):
    for name, text in {"conftest": (Path(__file__).parent / "conftest.py").read_text(), "test_it": ENDLESS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        try:
            line = next(line for line in run.stdout if line.startswith("up"))
        finally:
            run.kill()
    processes = [psutil.Process(int(pid)) for pid in line.split()[1:] if psutil.pid_exists(int(pid))]
    assert len(line.split()) == 1 + 3  # two ssh servers and a program
    _, alive = psutil.wait_procs(processes, timeout=PROMISED)
    assert alive == []
