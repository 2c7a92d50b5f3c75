"""Ranks that exchange through MPI's shared memory: how they find each other, and what they leave behind."""

import contextlib
import socketserver
import threading
import uuid
from pathlib import Path
from typing import Any, Self

from tfperf.parallel.launch.environment import START_TIMEOUT
from tfperf.parallel.launch.loopback import LOOPBACK
from tfperf.parallel.launch.output import say
from tfperf.parallel.launch.peers import refuse_strangers

__all__ = ["ProcessManager"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has POSIX shared memory

ONLY_SHARED_MEMORY = {"UCX_TLS": "self,sm", "FI_PROVIDER": "shm"}
"""Keeps the libraries under MPICH, UCX and libfabric, from listening on the network."""


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
        self._barrier = threading.Barrier(size)
        self._told = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        self._server = _Server((LOOPBACK, 0), _Rank)
        self._server.manager = self
        refuse_strangers(self._server)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
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
                self._here.add(int(words["pmiid"]))
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
        missing = set(range(self._size)) - self._here
        try:
            self._barrier.wait(self._patience if missing else None)  # once all are here, they may take their time
        except threading.BrokenBarrierError:
            missing = set(range(self._size)) - self._here
            if missing and not self._ended and self._told.acquire(blocking=False):
                ranks = ", ".join(map(str, sorted(missing)))
                say(f"rank {ranks} did not reach hvd.init() within {self._patience:g} s of the others")
            raise


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    manager: ProcessManager


class _Rank(socketserver.StreamRequestHandler):
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
