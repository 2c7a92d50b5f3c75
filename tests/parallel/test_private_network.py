"""A function in a process whose only network is loopback: who reaches its servers, what it returns, how it ends."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel import private_network
from tfperf.parallel.private_network import in_private_network, is_private

DEADLINE = 100
"""Seconds after which a process hangs."""

SERVE = """
import os, socket, sys
from tfperf.parallel import in_private_network
from tfperf.parallel.private_network import is_private

def serve(word):
    everywhere = socket.create_server(("0.0.0.0", 0))
    port = everywhere.getsockname()[1]
    socket.create_connection(("127.0.0.1", port)).close()
    print(is_private(), os.getpid(), os.getuid(), port, flush=True)
    sys.stdin.read()
    return word + " was served"

print("began", os.getpid(), flush=True)
print(in_private_network(serve, word="a client"), flush=True)
"""


def can_connect(port):
    """Whether anybody listens there, seen from this process."""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            return True
    except OSError:
        return False


def as_usual_user():
    """The beginning of a command that runs as a user who may not make namespaces but through one of users."""
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("no setpriv, with which root gives up its rights")
    return ["setpriv", "--bounding-set", "-sys_admin"] if os.getuid() == 0 else []


@pytest.mark.skipif(is_private() or not shutil.which("unshare"), reason="no network to leave, or no unshare to ask")
@pytest.mark.parametrize("rights", ["this user's", "a usual user's"])
def test_nobody_reaches_a_server_that_listens_everywhere(rights):
    """Without root's rights the kernel wants a process of one thread, which leaves the namespace of users too."""
    prefix = as_usual_user() if rights == "a usual user's" else []
    if subprocess.run([*prefix, "unshare", "--user", "--net", "true"], capture_output=True).returncode:
        pytest.skip("this kernel or container allows no network namespace")
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        began, caller = process.stdout.readline().split()
        private, server, user, port = process.stdout.readline().split()
        assert private == "True"
        assert not can_connect(port)
        network = Path("/proc/self/ns/net").readlink()
        assert Path(f"/proc/{server}/ns/net").readlink() != network
        assert Path(f"/proc/{caller}/ns/net").readlink() == network
        assert (began, int(caller), int(user)) == ("began", process.pid, os.getuid())
        process.stdin.close()
        assert process.stdout.read() == "a client was served\n", "the caller runs on, once"
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_where_the_kernel_forbids_it_the_function_runs_and_can_ask(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import ctypes\nctypes.CDLL = lambda *_, **__: Refusing()\n" + REFUSING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def ask():
        from tfperf.parallel.private_network import is_private

        return is_private()

    assert in_private_network(ask) == is_private()


REFUSING = """
class Refusing:
    def unshare(self, flags):
        return -1

    def prctl(self, *_):
        return 0
"""


def test_a_network_that_can_only_be_half_made_is_not_left(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HALF_MADE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def ask():
        from tfperf.parallel.private_network import is_private

        return is_private(), Path("/proc/self/ns/net").readlink()

    assert in_private_network(ask) == (is_private(), Path("/proc/self/ns/net").readlink())


HALF_MADE = """
import fcntl

ioctl = fcntl.ioctl

def refusing_ioctl(file, request, *rest):
    if request == 0x8914:
        raise PermissionError(13, "Permission denied")
    return ioctl(file, request, *rest)

fcntl.ioctl = refusing_ioctl
"""
"""A system that lets a process leave for a namespace, and forbids it to bring up the interface there."""


def test_without_an_address_nothing_is_private(monkeypatch):
    monkeypatch.setattr(private_network.psutil, "net_if_addrs", lambda: {"lo": []})
    assert not is_private()


def test_its_process_has_one_thread_when_it_leaves_the_network():
    program = "import sys, os, tfperf.parallel.private_network\n"
    program += "print('numpy' in sys.modules, len(os.listdir('/proc/self/task')))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE)
    assert process.stdout == "False 1\n"


# What comes back


def test_the_result_of_a_function_that_only_this_program_has():
    def add(*numbers, scale):
        return sum(numbers) * scale, os.getpid()

    total, pid = in_private_network(add, 1, 2, 3, scale=10)
    assert total == 60
    assert pid != os.getpid()
    assert not psutil.pid_exists(pid)


def test_an_error_that_was_foreseen_stays_itself():
    def refuse():
        raise TfperfError("expected an even number. Received: 3")

    with pytest.raises(TfperfError, match=r"^expected an even number. Received: 3$"):
        in_private_network(refuse)


def test_another_error_is_one_line_with_the_functions_name():
    def divide():
        return 1 / 0

    with pytest.raises(TfperfError, match=r"^divide has failed in a process of its own: ZeroDivisionError: [^\n]+$"):
        in_private_network(divide)


def test_a_result_that_cannot_be_sent_is_an_error():
    def make():
        return lambda: None

    with pytest.raises(TfperfError, match=r"^make has failed in a process of its own: "):
        in_private_network(make)


def test_a_process_that_ends_is_an_error():
    def leave():
        os._exit(3)

    with pytest.raises(TfperfError, match=r"^expected a result of leave, its process has ended without one$"):
        in_private_network(leave)


# How it ends

WAIT = """
import os, sys, time
from tfperf.parallel import in_private_network

def wait():
    try:
        print(os.getpid(), flush=True)
        while True:  # Python misses a signal that comes just before it begins to sleep
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("ended in order", flush=True)
        raise

try:
    in_private_network(wait)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def waiting():
    """A program whose function waits in its own process, in a process group of their own; it and that process."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    inside = psutil.Process(int(process.stdout.readline()))
    try:
        yield process, inside
    finally:
        process.kill()
        process.wait()
        if inside.is_running():
            inside.kill()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_function_and_then_its_caller(waiting, number):
    process, inside = waiting
    os.killpg(process.pid, number)  # as a terminal does
    out, err = process.communicate(timeout=DEADLINE)
    assert out.splitlines() == ["ended in order", "interrupted"]
    assert err == ""
    assert not inside.is_running()


def test_the_process_ends_with_a_caller_that_is_killed(waiting):
    process, inside = waiting
    process.kill()
    process.wait()
    end = time.monotonic() + DEADLINE
    while inside.is_running() and inside.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.05)  # between two looks
