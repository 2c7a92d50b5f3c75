"""KeyValueStore: push and pull, on parameter servers that run TensorFlow."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from tfperf.errors import TfperfError
from tfperf.parallel.cluster import LocalCluster

__all__ = ["KeyValueStore"]

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds that a worker waits for what the others are to push."""


class Entry(NamedTuple):
    """One key's value in parts, each a flat variable on a parameter server, and the pushes of its unfinished round."""

    shape: tuple[int, ...]
    values: list[Any]
    pending: list[Any]
    pushes: list[int]
    """How often each worker has pushed."""


class KeyValueStore:
    """Values by key on parameter servers: workers push what is added to them, and pull what they have become.

    ::

        with LocalCluster(workers=2, parameter_servers=2) as cluster:
            store = KeyValueStore(cluster)
            store.create("total", tf.zeros([3]))

            def work(worker):  # runs on each worker at once
                store.push("total", tf.ones([3]) * (worker + 1))
                return store.pull("total")  # [3, 3, 3] on both

            store.run(work)

    Tensors go from a worker's TensorFlow server to a parameter server's over gRPC; the program that holds the store
    only says which. Synchronous: the pushes of all workers are one round, which takes effect as a whole when the last
    one has come, and a pull waits for the rounds that its worker has pushed to. All workers pull the one sum, so their
    copies stay equal bit by bit. Asynchronous: a push takes effect as it comes, and no pull waits.
    """

    def __init__(
        self, cluster: LocalCluster, *, synchronous: bool = True, split: bool = False, deadline: float = DEADLINE
    ) -> None:
        """Connect this process to a cluster.

        Args:
            cluster: with its servers running, at least one of them a parameter server.
            synchronous: whether a pull waits until every worker has pushed.
            split: whether each value lies in equal parts on all servers; else it lies whole on the server that holds
                the fewest bytes.
            deadline: seconds that a worker waits for the others.

        Raises:
            TfperfError: the cluster has no parameter server.
        """
        self._cluster = cluster
        self._workers, self._servers = len(cluster.addresses["worker"]), len(cluster.addresses["ps"])
        if not self._servers:
            raise TfperfError("expected a cluster with at least 1 parameter server. Received: none")
        import tensorflow as tf

        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster.addresses), job_name="chief")
        self._synchronous, self._split, self._deadline = synchronous, split, deadline
        self._entries: dict[str, Entry] = {}
        self._round = threading.Condition()
        self._failed = False
        self._worker: contextvars.ContextVar[int] = contextvars.ContextVar("worker")

    def create(self, key: str, value: Any) -> None:
        """Place a key's first value, a tensor or array of any shape, on the servers.

        Raises:
            TfperfError: the key is there already.
        """
        import tensorflow as tf

        if key in self._entries:
            raise TfperfError(f"expected a new key. Received: {key!r}, which the store holds")
        value = tf.convert_to_tensor(value)
        if self._split:
            servers = list(range(self._servers))
        else:
            held = self.bytes_held()
            servers = [held.index(min(held))]
        values, pending = [], []
        for server, part in zip(servers, _parts(value, len(servers)), strict=True):
            with tf.device(f"/job:ps/task:{server}"):
                values.append(tf.Variable(part))
                pending.append(tf.Variable(tf.zeros_like(part)))
        self._entries[key] = Entry(tuple(value.shape), values, pending, [0] * self._workers)

    def push(self, key: str, value: Any) -> None:
        """Add a worker's value, of the key's shape, to the key's.

        Raises:
            TfperfError: there is no such key, the shape differs, or the other workers did not finish the last round.
        """
        import tensorflow as tf

        entry, value = self._entry(key), tf.convert_to_tensor(value)
        if tuple(value.shape) != entry.shape:
            raise TfperfError(f"expected shape {entry.shape} for key {key!r}. Received: {tuple(value.shape)}")
        parts = _parts(value, len(entry.values))  # on the worker, so that a server gets its own part alone
        if not self._synchronous:
            _add(entry.values, parts)
            return
        worker = self._worker.get(None)
        if worker is None:
            raise TfperfError(f"expected a push of {key!r} by a worker, in a function that `run` runs. Received: none")
        self._await_round(key, entry, entry.pushes[worker])
        _add(entry.pending, parts)
        with self._round:
            entry.pushes[worker] += 1
            if len(set(entry.pushes)) == 1:  # the last of the round
                for total, pending in zip(entry.values, entry.pending, strict=True):
                    total.assign_add(pending)
                    pending.assign(tf.zeros_like(pending))
                self._round.notify_all()

    def pull(self, key: str) -> Any:
        """Fetch a key's value, as a tensor of its shape on the worker that asks.

        Raises:
            TfperfError: there is no such key, or the other workers did not push in time; it names them.
        """
        import tensorflow as tf

        entry, worker = self._entry(key), self._worker.get(None)
        if self._synchronous and worker is not None:
            self._await_round(key, entry, entry.pushes[worker])
        return tf.reshape(tf.concat(entry.values, 0), entry.shape)

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Run a function on all workers at once, each in a thread of this process that computes on its worker.

        Args:
            function: is given the worker's index; it may push and pull. Where it fails on one, the others fail as they
                wait for that one; what was pushed to a round that is not finished then is lost.

        Returns:
            The results, in the order of the workers.
        """
        import tensorflow as tf

        if self._failed:
            self._give_up_rounds()

        def work(worker: int) -> T:
            self._worker.set(worker)
            with tf.device(f"/job:worker/task:{worker}"):
                try:
                    return function(worker)
                except BaseException:
                    self._fail()
                    raise

        with ThreadPoolExecutor(self._workers) as threads:
            try:
                return list(threads.map(work, range(self._workers)))
            except BaseException:
                self._fail()
                raise

    def bytes_held(self) -> list[int]:
        """Bytes of values that each parameter server holds."""
        return self._cluster.bytes_held([entry.values for entry in self._entries.values()])

    def _entry(self, key: str) -> Entry:
        if key not in self._entries:
            raise TfperfError(f"expected one of the keys {', '.join(self._entries)}. Received: {key!r}")
        return self._entries[key]

    def _await_round(self, key: str, entry: Entry, number: int) -> None:
        """Wait until all workers have pushed so often."""
        with self._round:
            self._round.wait_for(lambda: self._failed or min(entry.pushes) >= number, self._deadline)
            late = [f"worker {worker}" for worker, pushes in enumerate(entry.pushes) if pushes < number]
            if late:
                within = "before one failed" if self._failed else f"within {self._deadline:g} s"
                raise TfperfError(f"expected every worker to push {key!r} {within}; {', '.join(late)} did not")

    def _give_up_rounds(self) -> None:
        """Forget what a run that failed has left of unfinished rounds."""
        import tensorflow as tf

        for entry in self._entries.values():
            entry.pushes[:] = [min(entry.pushes)] * self._workers
            for pending in entry.pending:
                pending.assign(tf.zeros_like(pending))
        self._failed = False

    def _fail(self) -> None:
        """Let no worker wait for one that has failed."""
        with self._round:
            self._failed = True
            self._round.notify_all()


def _parts(value: Any, number: int) -> list[Any]:
    """A tensor's elements in parts that differ by at most one element in size."""
    import tensorflow as tf

    size = value.shape.num_elements()
    return list(tf.split(tf.reshape(value, [-1]), [(size + part) // number for part in range(number)]))


def _add(variables: list[Any], parts: list[Any]) -> None:
    """Add a worker's parts to variables, on the servers that hold them."""
    for variable, part in zip(variables, parts, strict=True):
        variable.assign_add(part)
