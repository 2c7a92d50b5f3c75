"""Who is at the other end of a connection: other users of this machine, and web pages, are refused unread."""

import http.client
import os
import pickle
import socket
import socketserver
import subprocess
import sys
import threading

import pytest

from tfperf.parallel.launch import access
from tfperf.parallel.launch.access import refuse_strangers, same_user

DEADLINE = 60
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
needs_ipv6 = pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")

AS_USER = """
import encodings.idna, http.client, os, socket, sys  # now: another user may be unable to read them
user = int(sys.argv[1])
if user != os.getuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
exec(sys.argv[2])
"""


def run_as(user, code, *arguments):
    """Run Python code as a user; what it prints."""
    command = [sys.executable, "-I", "-S", "-c", AS_USER, str(user), code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert result.stderr == ""
    return result.stdout


CONNECT = """
connection = socket.create_connection((sys.argv[3], int(sys.argv[4])), 30)
print(connection.recv(8).decode(), flush=True)
"""


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        self.server.handled.append(True)
        self.request.sendall(b"answer")


class IPv6(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6


@pytest.fixture
def serving():
    """A function that has a server refuse strangers, and serve."""
    servers = []

    def serving(server):
        refuse_strangers(server)
        server.handled = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield serving
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(
    params=[
        ("127.0.0.1", "127.0.0.1", socketserver.ThreadingTCPServer),
        ("", "127.0.0.1", socketserver.ThreadingTCPServer),
        pytest.param(("::1", "::1", IPv6), marks=needs_ipv6),
        pytest.param(("::", "127.0.0.1", IPv6), marks=needs_ipv6),
    ],
    ids=["loopback", "all", "IPv6", "IPv4 in IPv6"],
)
def served(serving, request):
    """A server and the address at which a client finds it."""
    listens, address, kind = request.param
    try:
        server = serving(kind((listens, 0), Answer))
    except OSError as error:
        pytest.skip(f"needs an address {listens}: {error}")
    return server, address, server.server_address[1]


def test_the_own_user_is_answered(served):
    server, address, port = served
    assert run_as(os.getuid(), CONNECT, address, port) == "answer\n"
    assert server.handled == [True]


@needs_root
def test_another_user_is_refused_unread(served):
    server, address, port = served
    assert run_as(NOBODY, CONNECT, address, port) == "\n"
    assert server.handled == []


@needs_root
def test_root_may_speak_to_any_user(serving, monkeypatch):
    server = serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer))
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert run_as(0, CONNECT, *server.server_address) == "answer\n"
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert run_as(NOBODY, CONNECT, *server.server_address) == "\n"


def test_a_socket_that_was_closed_is_nobodys():
    """The table then has 0, as for root, in its place."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
        with connection:
            assert same_user(connection)
            client.sendall(b"x")
            client.close()
            assert not same_user(connection)


def test_a_peer_that_still_reads_is_somebody():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connection, _ = server.accept()
        with connection:
            client.shutdown(socket.SHUT_WR)
            assert same_user(connection)


def test_peers_elsewhere_are_not_looked_up(monkeypatch):
    class Connection:
        def getsockname(self):
            return "198.51.100.1", 1  # RFC 5737 keeps these from ever being a machine's

        def getpeername(self):
            return "198.51.100.2", 2

    assert same_user(Connection())
    monkeypatch.setattr(access, "_is_this_machines", lambda host: host == "198.51.100.2")
    assert not same_user(Connection())


@pytest.fixture
def rendezvous():
    pytest.importorskip("horovod", reason="needs Horovod")
    from tfperf.parallel.launch.rendezvous import Rendezvous

    with Rendezvous("127.0.0.1") as rendezvous:
        port = rendezvous.start()
        rendezvous.init([])
        yield port


def asked(port, **headers):
    """The status of a request to the rendezvous server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("PUT", "/scope/key", b"value", headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST:1"])
def test_requests_for_this_address_are_answered(rendezvous, host):
    assert asked(rendezvous, Host=host) == 200


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "127.0.0.1.attacker.example", "[::1", ""])
def test_requests_of_web_pages_are_refused(rendezvous, host):
    assert asked(rendezvous, Host=host) == 421


class Writes:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


PUT = """
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[3]), timeout=30)
try:
    connection.request("PUT", sys.argv[4], sys.argv[5])
    print(connection.getresponse().status)
except (ConnectionError, http.client.HTTPException) as error:
    print("refused")
"""


@needs_root
def test_what_another_user_puts_into_elastic_training_is_not_unpickled(tmp_path):
    """CVE-2024-10190."""
    pytest.importorskip("horovod", reason="needs Horovod")
    from horovod.runner.common.util import codec
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler

    from tfperf.parallel.launch.rendezvous import Rendezvous

    payload = codec.base64.b64encode(pickle.dumps(Writes(tmp_path / "written"))).decode()
    with Rendezvous("127.0.0.1") as rendezvous:
        port = rendezvous.start(create_rendezvous_handler(None))
        rendezvous.init([])
        assert run_as(NOBODY, PUT, port, "/worker_addresses/localhost:0", payload) == "refused\n"
        assert not (tmp_path / "written").exists()
        assert run_as(NOBODY, PUT, port, "/scope/key", "value") == "refused\n"
        assert run_as(0, PUT, port, "/scope/key", "value") == "200\n"


SERVICES = """
import os, sys
from tfperf.parallel.launch import listen_on_loopback_only
listen_on_loopback_only()
from horovod.runner.common.util import network, secret
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer
from horovod.runner.elastic.worker import WorkerNotificationService
key = secret.make_secret_key()
ports = [
    network.BasicService("name", key, None).get_port(),
    WorkerNotificationService(key, "lo", None).get_port(),
    KVStoreServer(verbose=0).start_server(),
    RendezvousServer().start(),
]
network.BasicClient("name", {"lo": [("127.0.0.1", ports[0])]}, key, 0)  # its own user may
print(*ports, flush=True)
sys.stdin.read()
"""

READ = """
for port in sys.argv[3:]:
    connection = socket.create_connection(("127.0.0.1", int(port)), 30)
    connection.settimeout(1)
    try:
        print("closed" if connection.recv(1) == b"" else "data")
    except ConnectionResetError:
        print("closed")
    except TimeoutError:
        print("open")
"""


@needs_root
def test_every_service_of_horovod_refuses_other_users():
    pytest.importorskip("horovod", reason="needs Horovod")
    with subprocess.Popen(
        [sys.executable, "-c", SERVICES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            ports = process.stdout.readline().split()
            assert len(ports) == 4
            assert run_as(NOBODY, READ, *ports).split() == ["closed"] * 4
            assert run_as(0, READ, *ports).split() == ["open"] * 4
        finally:
            process.kill()


@needs_root
def test_the_process_manager_refuses_other_users():
    from tfperf.parallel.launch.rendezvous import ProcessManager

    with ProcessManager(2) as manager:
        _, port = manager.variables(0)["PMI_PORT"].split(":")
        assert run_as(NOBODY, READ, port) == "closed\n"
        assert run_as(0, READ, port) == "open\n"
