"""Two hosts on this machine: an ssh server each, in namespaces of its own, and a link of limited rate between them."""

import contextlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tfperf.processes import PIPE, ChildProcess

DEADLINE = 60
"""Seconds after which a command on a host hangs."""

PROMISED = 30
"""Seconds in which an error is told, and all is gone."""

RATE = "1gbit"
LINK = "eth0"
ADDRESSES = {"node1": "198.51.100.1", "node2": "198.51.100.2"}  # RFC 5737 keeps these from ever being a machine's
NAMES = ADDRESSES | {"stranger": ADDRESSES["node2"], "nobody": "198.51.100.9"}  # another name of node2; no machine
TOOLS = ("ip", "tc", "unshare", "nsenter", "ssh", "ssh-keygen")
SSHD = "/usr/sbin/sshd"  # it must be started by its whole path
UNSHARE = ["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]

BECOME_HOST = f"""
set -e
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/ssh_config" /etc/ssh/ssh_config
if [ -d ~/.ssh ]; then mount -t tmpfs none ~/.ssh; fi
mount -t tmpfs none /run
mkdir /run/sshd
hostname "$2"
ip link set lo up
exec {SSHD} -D -f "$1/$2.sshd_config" -E "$1/$2.log"
"""
"""The first process of a host, which becomes its ssh server; all of the host ends with it."""

SSHD_CONFIG = """
HostKey {folder}/{name}
PidFile {folder}/{name}.pid
AuthorizedKeysFile {folder}/user.pub
AllowUsers root
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""

SSH_CONFIG = """
Host refused
    HostName node2
    User guest
Host *
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


@dataclass(frozen=True)
class Host:
    """One of the two: its name, and its first process as this machine numbers it."""

    name: str
    pid: int

    def start(self, *command, folder="/", **variables):
        """Start a command on the host, in a folder, with its output in one; ended with the host at the latest."""
        enter = ["nsenter", "--target", str(self.pid), "--all", "--", "env", f"--chdir={folder}"]
        return subprocess.Popen(
            [*enter, *(f"{name}={value}" for name, value in variables.items()), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command, deadline=DEADLINE, **options):
        """Run a command to its end; its exit code and its output."""
        with self.start(*command, **options) as process:
            try:
                output, _ = process.communicate(timeout=deadline)
            finally:
                process.kill()
        return process.returncode, output

    def processes(self):
        """What runs on the host beside its ssh server, with what that server runs for its connections."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
                if inside and process.pid != self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def command_lines(self):
        """The command line of each of them that still runs."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found.append(process.cmdline())
        return found


class TwoHosts:
    """The hosts, and what is common to both."""

    def __init__(self, node1, node2):
        self.node1 = node1
        self.node2 = node2

    def __iter__(self):
        return iter((self.node1, self.node2))

    def left(self):
        """Command lines of what runs on either of them after a moment."""
        deadline = time.monotonic() + PROMISED
        while (left := [line for host in self for line in host.command_lines()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def end_all(self):
        """End all that runs on them."""
        while left := [process for host in self for process in host.processes()]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)


def what_is_missing():
    """Why there cannot be two hosts on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces and ssh servers"
    missing = [tool for tool in (*TOOLS, SSHD) if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, openssh-server, openssh-client)"
    tried = subprocess.run(["unshare", *UNSHARE, "true"], capture_output=True, text=True, timeout=DEADLINE)
    return f"needs namespaces: {tried.stderr.strip()}" if tried.returncode else None


@contextlib.contextmanager
def host(name, folder):
    """A host; it ends with the block, and with this process, however that ends."""
    (folder / f"{name}.sshd_config").write_text(SSHD_CONFIG.format(folder=folder, name=name))
    command = ["unshare", *UNSHARE, "sh", "-c", BECOME_HOST, "sh", folder, name]
    with ChildProcess(command, stderr=PIPE) as process:  # with its first process Linux ends all others of the host
        pid_file = folder / f"{name}.pid"
        deadline = time.monotonic() + DEADLINE
        while not pid_file.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if not pid_file.exists():
            process.end()
            pytest.fail(f"{name} did not start: {process.stderr.read()}")
        (first,) = psutil.Process(process.pid).children()
        yield Host(name, first.pid)


def new_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=DEADLINE)
    return path.with_suffix(".pub").read_text()


def join(hosts):
    """Lay a cable between them; it goes with the hosts."""
    node1, node2 = hosts
    ends = [LINK, "netns", node1.pid, "type", "veth", "peer", "name", LINK, "netns", node2.pid]
    subprocess.run(["ip", "link", "add", *map(str, ends)], check=True, timeout=DEADLINE)
    for host in hosts:
        for line in (
            f"ip address add {ADDRESSES[host.name]}/24 dev {LINK}",
            f"ip link set {LINK} up",
            f"tc qdisc add dev {LINK} root tbf rate {RATE} burst 256kb latency 50ms",
        ):
            code, output = host.run(*line.split())
            assert code == 0, f"{line}: {output}"


@pytest.fixture(scope="session")
def hosts_of_session(tmp_path_factory):
    if reason := what_is_missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    new_key(folder / "user")
    keys = {name: new_key(folder / name) for name in ADDRESSES}
    (folder / "known_hosts").write_text("".join(f"{name},{ADDRESSES[name]} {key}" for name, key in keys.items()))
    names = "".join(f"{address} {name}\n" for name, address in NAMES.items())
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
    with host("node1", folder) as node1, host("node2", folder) as node2:
        join((node1, node2))
        yield TwoHosts(node1, node2)


@pytest.fixture
def two_hosts(hosts_of_session):
    """Two hosts, node1 and node2, on which nothing runs; whatever a test leaves running fails it, and is ended."""
    yield hosts_of_session
    left = hosts_of_session.left()
    hosts_of_session.end_all()
    assert left == []
