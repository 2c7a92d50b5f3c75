"""The servers at which ranks find each other, on one address of this machine.

Horovod's own for Gloo, and a process manager for ranks that exchange through MPI's shared memory.
"""

import contextlib
import socketserver
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tfperf.parallel.launch.access import refuse_strangers
from tfperf.parallel.launch.environment import START_TIMEOUT
from tfperf.parallel.launch.output import say
from tfperf.parallel.private_network import LOOPBACK
from tfperf.parallel.rank_names import name_ranks

__all__ = ["ProcessManager", "Rendezvous"]

ALL_RANKS = "global"
"""Under which the ranks leave their addresses for all others, by their numbers."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
"""Where Linux has POSIX shared memory."""

ONLY_SHARED_MEMORY = {"UCX_TLS": "self,sm", "FI_PROVIDER": "shm"}
"""Keeps the libraries under MPICH, UCX and libfabric, from listening on the network."""


class Rendezvous:
    """Horovod's own rendezvous server, which listens on the address it is given and not on all of them.

    Has the methods of `horovod.runner.http.http_server.RendezvousServer` that Horovod's elastic driver calls.

    Args:
        address: an IPv4 address of this machine.
        on_stop: called at its end, which Horovod's elastic driver begins before it waits for its other parts.

    Attributes:
        came: the ranks that wait, or have waited, for the others in `hvd.init()`; of a fixed number of ranks.
    """

    def __init__(self, address: str, on_stop: Callable[[], None] = lambda: None) -> None:
        self._address = address
        self._on_stop = on_stop
        self.came: set[int] = set()
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self, handler: Any = None) -> int:
        """Listen, with Horovod's handler for a fixed number of ranks or another one; the port."""
        from horovod.runner.http.http_server import OK, RendezvousHandler, RendezvousHTTPServer

        came = self.came

        class NotingHandler(RendezvousHandler):  # type: ignore[misc]  # untyped
            def do_DELETE(self) -> None:  # noqa: N802 - http.server's name for it
                """A rank has found the others of a scope; all have, and their addresses go.

                Horovod 0.28.1 then forgets who is done in all scopes. Where a rank is late, the addresses of another
                scope stay for it, and the next `hvd.init()` of the launch tries to connect to what is gone.
                """
                scope, key = self.path.split("/")[1:3]
                if scope not in self.server.scope_size:
                    super().do_DELETE()
                    return
                with self.server.finished_list_lock, self.server.cache_lock:
                    done = self.server.finished_list[scope]
                    done.append(key)
                    if len(done) == self.server.scope_size[scope]:
                        self.server.cache.pop(scope, None)
                        done.clear()
                self.send_status_code(OK)

            def _put_value(self, scope: str, key: str, value: bytes) -> None:
                if scope == ALL_RANKS and key.isdigit():
                    came.add(int(key))
                super()._put_value(scope, key, value)

        self._server = RendezvousHTTPServer((self._address, 0), handler or NotingHandler, 0)
        self._server.daemon_threads = True  # a request of an elastic rank waits for the other ranks, perhaps for ever
        refuse_strangers(self._server)
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        self._thread = thread
        return int(self._server.server_address[1])

    def init(self, slots: Any) -> None:
        """Forget what ranks have told so far, and expect these."""
        self._server.init(slots)

    def stop(self) -> None:
        """Answer no more."""
        self._on_stop()
        if self._thread is not None:  # `shutdown` waits for ever for a server that does not serve
            self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._server is not None:
            self._server.server_close()


class ProcessManager:
    """The process manager of one job on this machine, as MPICH's `mpiexec` is one, on a port of loopback.

    A rank tells and asks it what MPICH's process management interface 1 (PMI-1) names: its size, values by key and a
    barrier. See Balaji et al., PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems,
    https://doi.org/10.1007/978-3-642-15646-5_4. MPI's own programs that start ranks listen on all interfaces.

    Args:
        size: the number of ranks.
        patience_s: seconds that the ranks wait for the last of them to start.
    """

    def __init__(self, size: int, patience_s: float = START_TIMEOUT) -> None:
        self._size, self._patience = size, patience_s
        self._name = f"tfperf-{uuid.uuid4().hex}"  # MPICH names its shared memory after it
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}  # from node 0 on, 1 node, so many ranks on it
        self._fixed_answers = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_universe_size": f"cmd=universe_size size={size} rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
        }
        self._here: set[int] = set()
        self._came = threading.Condition()
        self._barrier = threading.Barrier(size)
        self._told = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        self._server = _Server((LOOPBACK, 0), _ManagedRank)
        self._server.manager = self
        refuse_strangers(self._server)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._came:
            self._ended = True
            self._came.notify_all()
        self._barrier.abort()
        self._server.shutdown()
        self._server.server_close()
        number = _fnv1a(self._name.encode())
        for what in ("shm", "vci"):  # ranks that were killed leave theirs
            (SHARED_MEMORY / f"mpich_{what}_{number:x}_0").unlink(missing_ok=True)

    def variables(self, rank: int) -> dict[str, str]:
        """What makes a process this rank of the job, and Horovod in it use MPI."""
        port = self._server.server_address[1]
        horovod = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
        return horovod | ONLY_SHARED_MEMORY | {"PMI_PORT": f"{LOOPBACK}:{port}", "PMI_ID": str(rank)}

    def answer(self, line: str) -> str | None:
        """The answer to a line that a rank has sent; None when it asks for what this does not know.

        Raises:
            threading.BrokenBarrierError: the job ended, or ranks did not come in time, while this one waited for all.
        """
        asked, _, value = line.partition(" value=")
        words = dict(word.split("=", 1) for word in asked.split() if "=" in word)
        match words.get("cmd"):
            case "initack":
                with self._came:
                    self._here.add(int(words["pmiid"]))
                    self._came.notify_all()
                return f"cmd=initack rc=0\ncmd=set size={self._size}\ncmd=set rank={words['pmiid']}\ncmd=set debug=0"
            case "put":
                self._values[words["key"]] = value
                return "cmd=put_result rc=0 msg=success"
            case "get" if words["key"] in self._values:
                return f"cmd=get_result rc=0 msg=success value={self._values[words['key']]}"
            case "get":
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            case "barrier_in":
                self._wait_for_all()
                return "cmd=barrier_out rc=0"
        return self._fixed_answers.get(words.get("cmd", ""))

    def _wait_for_all(self) -> None:
        with self._came:
            self._came.wait_for(lambda: len(self._here) == self._size or self._ended, self._patience)
            missing = set(range(self._size)) - self._here
        if missing:
            if not self._ended and self._told.acquire(blocking=False):
                say(f"{name_ranks(sorted(missing))} did not reach hvd.init() within {self._patience:g} s of the others")
            self._barrier.abort()
        self._barrier.wait()  # once all are here, they may take their time


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    manager: ProcessManager


class _ManagedRank(socketserver.StreamRequestHandler):
    server: Any

    def handle(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError, ConnectionError):
            for line in self.rfile:
                answer = self.server.manager.answer(line.decode().rstrip("\n"))
                if answer is None:
                    return
                self.wfile.write(f"{answer}\n".encode())


def _fnv1a(text: bytes) -> int:
    """The 32-bit FNV-1a hash, by which MPICH numbers a job."""
    number = 0x811C9DC5
    for byte in text:
        number = (number ^ byte) * 0x01000193 % 2**32
    return number
