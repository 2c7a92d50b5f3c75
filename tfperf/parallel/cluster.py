"""TensorFlow's own servers on this machine: a cluster of workers and parameter servers, and multi-worker jobs."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from tfperf.errors import TfperfError
from tfperf.importing import KERAS_CAN_DO_WITHOUT, absent, no_collections
from tfperf.parallel.limited_links import HOST, Traffic, join_by_links, server_address, traffic
from tfperf.parallel.private_network import LOOPBACK, is_private, leave_network
from tfperf.processes import WorkerProcesses
from tfperf.processes.resting import IDLE_LIMIT
from tfperf.processes.signals import handling

__all__ = ["LocalCluster", "run_on_workers"]

T = TypeVar("T")

START_DEADLINE = 30.0
"""Seconds for servers to start once their processes have loaded TensorFlow, which has a deadline of its own."""

DEADLINE = 240.0
"""Seconds that the work of a cluster may take unless its program says otherwise."""

LOOK = 0.2
"""Seconds between two looks whether all servers live."""


class LocalCluster:
    """Real TensorFlow servers, each a process of this machine: workers, and parameter servers that hold variables.

    ::

        def train():
            with LocalCluster(workers=2, parameter_servers=2) as cluster:
                strategy = tf.distribute.ParameterServerStrategy(cluster.resolver)
                coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
                ...

        in_private_network(train)

    A TensorFlow server listens on all interfaces, whatever address it is given, and runs what anybody sends it. So a
    cluster starts in a private network only; `in_private_network` makes one. TensorFlow is joined to its servers for
    good: call `in_private_network` once for each cluster. All servers end with the block, however it ends: also on an
    error, Ctrl-C and SIGTERM, and where this process is killed.
    """

    def __init__(
        self,
        workers: int = 2,
        parameter_servers: int = 1,
        *,
        start_deadline: float = START_DEADLINE,
        deadline: float = DEADLINE,
        bandwidth: float | None = None,
    ) -> None:
        """Say which servers `with` is to start.

        Args:
            workers: servers that compute: job "worker".
            parameter_servers: servers that hold variables: job "ps".
            start_deadline: seconds until all servers must answer.
            deadline: seconds that the block may take.
            bandwidth: bytes/s that each parameter server can send, and receive, over a link of its own; None: all
                servers share the loopback interface. It needs root's rights, iproute2 and nsenter.

        Raises:
            TfperfError: there is no worker, fewer than no parameter servers, or a bandwidth for none.
        """
        if workers < 1 or parameter_servers < 0:
            wanted = "expected at least 1 worker and no fewer than 0 parameter servers"
            raise TfperfError(f"{wanted}. Received: workers={workers}, parameter_servers={parameter_servers}")
        if bandwidth and not parameter_servers:
            raise TfperfError(f"expected parameter servers for a bandwidth of {bandwidth:g} bytes/s. Received: none")
        self._numbers = {"worker": workers, "ps": parameter_servers}
        self._start_deadline, self._deadline, self._bandwidth = start_deadline, deadline, bandwidth
        self._failure: TfperfError | None = None
        self.addresses: dict[str, list[str]] = {}
        """Job -> the address, host:port, of each of its servers, and "chief": this process's own; with `with`."""

    def traffic(self) -> list[Traffic]:
        """Count the bytes that each parameter server has received and sent so far; none without a `bandwidth`."""
        return [traffic(server) for server in range(self._numbers["ps"])] if self._bandwidth else []

    def bytes_held(self, variables: Any) -> list[int]:
        """Count the bytes of variables that each parameter server holds, by the devices that they are on.

        Args:
            variables: a nest of `tf.Variable`; those on no parameter server do not count.
        """
        import tensorflow as tf

        held = [0] * self._numbers["ps"]
        for variable in tf.nest.flatten(variables):
            device = tf.DeviceSpec.from_string(variable.device)
            if device.job == "ps":
                held[device.task] += variable.shape.num_elements() * variable.dtype.size
        return held

    @property
    def resolver(self) -> Any:
        """A `tf.distribute.cluster_resolver.ClusterResolver`, for `ParameterServerStrategy`."""
        import tensorflow as tf

        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.addresses), rpc_layer="grpc"
        )

    def __enter__(self) -> Self:
        """Start the servers, and wait until they answer."""
        _check_network()
        self.addresses = addresses = _free_addresses({"chief": 1, **self._numbers})
        if self._bandwidth:
            self.addresses = addresses = _on_links(addresses)
        tasks = [(job, index) for job in self._numbers for index in range(len(addresses[job]))]
        with contextlib.ExitStack() as stack:
            names = [f"{job} {index} at {addresses[job][index]}" for job, index in tasks]
            self._servers = stack.enter_context(WorkerProcesses(len(tasks), names=names))
            if self._bandwidth:
                processes = self._servers.run(_own_process_number, tasks)
                join_by_links(processes[-self._numbers["ps"] :], self._bandwidth)
            self._servers.run(_load_tensorflow, [()] * len(tasks), idle_limit=IDLE_LIMIT)
            self._servers.run(_start_server, [(addresses, *task) for task in tasks], self._start_deadline)
            stack.enter_context(self._watched())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the servers; where one had ended by itself, that is the error."""
        try:
            if isinstance(error, Exception):
                self._watcher.join(2 * LOOK)  # calls of a server that ends fail before it is seen to have ended
        finally:
            self._stack.close()
        if self._failure and error is not self._failure:
            raise self._failure from error

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Make the block fail when a server ends or is stopped or the deadline passes, whatever the block waits for."""
        done, failed, caller = threading.Event(), threading.Event(), threading.get_ident()

        def watch() -> None:
            until = time.monotonic() + self._deadline
            while not done.wait(LOOK):
                problem = self._servers.first_ended() or self._servers.first_resting()
                if not problem and time.monotonic() > until:
                    problem = f"the work on them has not ended within {self._deadline:g} s"
                if problem:
                    self._failure = TfperfError(f"expected TensorFlow servers to work to the end; {problem}")
                    _give_up_recovery()
                    self._servers.kill()
                    while caller == threading.main_thread().ident and not (failed.is_set() or done.is_set()):
                        signal.pthread_kill(caller, signal.SIGUSR1)
                        done.wait(LOOK)  # Python misses a signal that comes just before it begins to wait
                    return

        def fail(*_: object) -> None:
            if self._failure and not failed.is_set():
                failed.set()
                raise self._failure

        self._watcher = threading.Thread(target=watch, daemon=True)
        with handling(signal.SIGUSR1, fail):
            self._watcher.start()
            try:
                yield
            finally:
                done.set()
                self._watcher.join()


def run_on_workers(
    function: Callable[..., T],
    *args: Any,
    workers: int = 2,
    deadline: float = DEADLINE,
) -> list[T]:
    """Run a function in several processes at once, the workers of one job, each with its TF_CONFIG.

    In it `tf.distribute.MultiWorkerMirroredStrategy()` joins the workers; it starts a TensorFlow server in each, so
    that this too needs a private network. GPUs are dealt out, one a worker.

    Args:
        function: with its arguments and results it is pickled, by value where the workers cannot import it.
        *args: its arguments, the same in all workers.
        workers: how many.
        deadline: seconds that the function may take.

    Returns:
        The results, in the order of the workers.

    Raises:
        TfperfError: the function has failed, a worker has ended, or a deadline has passed; it names the worker.
    """
    _check_network()
    addresses = _free_addresses({"worker": workers})
    names = [f"worker {index} at {address}" for index, address in enumerate(addresses["worker"])]
    with WorkerProcesses(workers, deadline, names) as processes:
        processes.run(_become_worker, [(addresses, index) for index in range(workers)], idle_limit=IDLE_LIMIT)
        return processes.run(function, [args] * workers)


def _give_up_recovery() -> None:
    """Have a ClusterCoordinator end without the worker that it waits for, for ever and with a lock held."""
    import tensorflow as tf

    tf.distribute.coordinator.ClusterCoordinator.__del__ = lambda _: None
    tf.get_logger().setLevel("CRITICAL")  # it writes down each call that fails, while it waits


def _check_network() -> None:
    """Refuse to start servers that others could reach."""
    if not is_private():
        raise TfperfError(
            "expected a network of loopback alone, as TensorFlow's servers run what anybody sends them. Received: one "
            "with other addresses; use in_private_network, or a container started with --network none"
        )


def _free_addresses(numbers: dict[str, int]) -> dict[str, list[str]]:
    """Job -> as many addresses of loopback as it has servers, with ports that nobody listens on."""
    with contextlib.ExitStack() as stack:  # all are held until all are known, so that no two are equal
        return {
            job: [
                "{}:{}".format(*stack.enter_context(socket.create_server((LOOPBACK, 0))).getsockname())
                for _ in range(number)
            ]
            for job, number in numbers.items()
        }


def _on_links(addresses: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same ports, on the two sides of links."""
    hosts = {job: [HOST] * len(ports) for job, ports in addresses.items()}
    hosts["ps"] = [server_address(server) for server in range(len(addresses["ps"]))]
    return {
        job: [f"{host}:{address.partition(':')[2]}" for host, address in zip(hosts[job], addresses[job], strict=True)]
        for job in addresses
    }


def _own_process_number(job: str, _: int) -> int:
    """This process's number, after a parameter server's has left for the far end of a link."""
    if job == "ps":
        leave_network()
    return os.getpid()


_servers: list[Any] = []
"""The server that this process is, for as long as it lives."""


def _load_tensorflow() -> None:
    """Load TensorFlow, without what it writes when other servers end, and without what a server never uses."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with no_collections(), absent(*KERAS_CAN_DO_WITHOUT):
        import tensorflow  # noqa: F401


def _start_server(addresses: dict[str, list[str]], job: str, index: int) -> None:
    """Make this process a TensorFlow server; a parameter server sees no GPU, and a worker one of them."""
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    settings = tf.compat.v1.ConfigProto()
    if job == "ps":
        settings.device_count["GPU"] = 0
    elif gpus:
        settings.gpu_options.visible_device_list = str(index % gpus)
        settings.gpu_options.allow_growth = True
    _servers.append(tf.distribute.Server(addresses, job_name=job, task_index=index, config=settings))


def _become_worker(addresses: dict[str, list[str]], index: int) -> None:
    """Make this process a worker of a multi-worker job."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": addresses, "task": {"type": "worker", "index": index}})
    _load_tensorflow()
    _deal_gpus(index)


def _deal_gpus(index: int) -> None:
    """Let this worker see one GPU, if there are any, and take its memory as it needs it."""
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[index % len(gpus)], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index % len(gpus)], True)
