"""Ranks that wait for another one in vain name it, and end.

Horovod has a stall check of its own, which under Gloo never finds anything: in version 0.28.1 its list of ranks stays
empty (`global_ranks_.reserve` in gloo_controller.cc). So each rank watches the exchanges that it waits in.
"""

import functools
import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, Protocol, TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf

from tfperf.parallel.launch.environment import (
    STALL_LIMIT,
    STALL_LIMIT_VARIABLE,
    STALL_WARNING,
    STALL_WARNING_VARIABLE,
)
from tfperf.parallel.rank_names import name_rank, name_ranks

__all__ = ["GraphExchanges", "forget_exchanges", "watch_for_stalls", "watched", "watching"]

P = ParamSpec("P")
T = TypeVar("T")

INTERVAL = 0.5
"""Seconds from one look to the next."""

ANSWER_SECONDS = 2.0
"""Seconds in which the ranks that wait tell each other so."""


class _Exchanges(Protocol):
    what: str

    def waiting(self) -> int | None:
        """The number of the exchange that this rank is in; None: in none."""

    def forget(self) -> None:
        """Take all as ended."""


class GraphExchanges:
    """Counts exchanges as they begin and end inside a `tf.function`, where Python does not see them."""

    def __init__(self, what: str) -> None:
        """Take what is exchanged, in words."""
        self.what = what
        with tf.init_scope():
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._ended = tf.Variable(0, dtype=tf.int64, trainable=False)
        _all_exchanges.append(self)

    def count(
        self, exchange: Callable[[list[tf.Tensor]], list[tf.Tensor]], tensors: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Exchange tensors, and count it. A step that finds no data has no tensors, and begins nothing."""
        tensors = [tf.identity(tensor) for tensor in tensors]  # of the graph that is traced, be it a branch
        with tf.control_dependencies(tensors):
            begun = self._begun.assign_add(1)
        exchanged = exchange(tensors)
        with tf.control_dependencies([begun, *exchanged]):
            self._ended.assign_add(1)  # a tf.function runs both before it returns; nothing in it waits for them
        return exchanged

    def waiting(self) -> int | None:
        """The number of the exchange that this rank is in; None: in none."""
        begun = int(self._begun)
        return begun if begun > int(self._ended) else None

    def forget(self) -> None:
        """Take all as ended."""
        self._ended.assign(self._begun)


class _CalledExchanges:
    """Counts exchanges that Python calls."""

    def __init__(self) -> None:
        self.what = "an exchange"
        self._begun = 0
        self._inside = False

    @contextmanager
    def one(self, what: str) -> Iterator[None]:
        self.what, self._begun, self._inside = what, self._begun + 1, True
        try:
            yield
        finally:
            self._inside = False

    def waiting(self) -> int | None:
        return self._begun if self._inside else None

    def forget(self) -> None:
        self._inside = False


_called = _CalledExchanges()
_all_exchanges: list[_Exchanges] = [_called]


def watching(what: str) -> AbstractContextManager[None]:
    """Count the block as an exchange."""
    return _called.one(what)


def watched(function: Callable[P, T]) -> Callable[P, T]:
    """One of Horovod's exchanges, counted when it is called outside a `tf.function`."""

    @functools.wraps(function)
    def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        if tf.inside_function():
            return function(*args, **kwargs)
        with watching(f"hvd.{function.__name__}"):
            return function(*args, **kwargs)

    return counted


def forget_exchanges() -> None:
    """Take all exchanges as ended: after an error that training survives."""
    for exchanges in _all_exchanges:
        exchanges.forget()


@functools.cache
def watch_for_stalls(shutdown: Callable[[], None]) -> None:
    """Watch this rank from now on, in a thread of its own that ends with the process.

    Args:
        shutdown: leaves the other ranks; called where this one has waited too long.
    """
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") == "0":
        threading.Thread(target=_watch, args=(shutdown,), name="tfperf stalls", daemon=True).start()


def _watch(shutdown: Callable[[], None]) -> None:
    warning = float(os.environ.get(STALL_WARNING_VARIABLE, STALL_WARNING))
    limit = float(os.environ.get(STALL_LIMIT_VARIABLE, STALL_LIMIT)) or float("inf")
    since: dict[tuple[int, int], float] = {}
    told: int | None = None  # the rank as which this one told the others
    while True:
        time.sleep(INTERVAL)
        now = time.monotonic()
        pending = [(exchanges, number) for exchanges in _all_exchanges if (number := exchanges.waiting()) is not None]
        since = {key: since.get(key, now) for key in ((id(exchanges), number) for exchanges, number in pending)}
        try:
            rank, size = hvd.rank(), hvd.size()
        except ValueError:  # Horovod has not begun, or has ended
            continue
        if not since:
            if told is not None:
                _tell_others(told, waiting=False)
                told = None
            continue
        exchanges, number = min(pending, key=lambda one: since[id(one[0]), one[1]])
        waited = now - since[id(exchanges), number]
        if waited >= limit:
            _say(rank, size, exchanges.what, waited, "so this rank ends")
            if exchanges.waiting() == number:  # another rank may have ended it meanwhile, and elastic training go on
                shutdown()  # fails what all ranks wait in, so that they end as well
        elif waited >= warning and told is None:
            told = rank
            _say(rank, size, exchanges.what, waited, f"ending at {limit:g} s")


def _say(rank: int, size: int, what: str, waited: float, then: str) -> None:
    _tell_others(rank, waiting=True)
    time.sleep(ANSWER_SECONDS)
    missing = [other for other in range(size) if other != rank and _is_waiting(other) is False]
    whom = name_ranks(missing) if missing else "another rank"
    message = f"{name_rank(rank)} has waited {waited:.0f} s in {what} for {whom}; {then} ({STALL_LIMIT_VARIABLE})"
    print(f"tfperf: {message}", file=sys.stderr, flush=True)


def _tell_others(rank: int, *, waiting: bool) -> None:
    """Tell the ranks that this one waits, or no longer, where a launcher has a place for that."""
    _ask_rendezvous("PUT" if waiting else "DELETE", rank)


def _is_waiting(rank: int) -> bool | None:
    """Whether a rank has told that it waits; None: there is no place to ask."""
    status = _ask_rendezvous("GET", rank)
    return None if status is None else status == http.client.OK


def _ask_rendezvous(method: str, rank: int) -> int | None:
    """The status of a request about a rank to the server at which ranks find each other; None: no answer."""
    address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if not address or not port:
        return None
    connection = http.client.HTTPConnection(address, int(port), timeout=ANSWER_SECONDS)
    try:
        connection.request(method, f"/tfperf_waiting/{rank}", body=b"1" if method == "PUT" else None)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()
