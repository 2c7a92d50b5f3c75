"""The server at which ranks find each other, on one address of this machine."""

import threading
from collections.abc import Callable
from typing import Any, Self

from tfperf.parallel.launch.peers import refuse_strangers

__all__ = ["Rendezvous"]

ALL_RANKS = "global"
"""Under which the ranks leave their addresses for all others, by their numbers."""


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
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        came = self.came

        class NotingHandler(RendezvousHandler):  # type: ignore[misc]  # untyped
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
