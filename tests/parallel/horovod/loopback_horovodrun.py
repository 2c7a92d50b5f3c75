"""`horovodrun`, whose rendezvous server listens on 127.0.0.1 alone: as it comes, it listens on every interface."""

from horovod.runner.http import http_server
from horovod.runner.launch import run_commandline

LOOPBACK = "127.0.0.1"


def on_loopback(server: type) -> None:
    """Let a class of HTTP server bind to the loopback address whatever address it is given."""
    bind = server.server_bind

    def server_bind(self) -> None:
        self.server_address = (LOOPBACK, *self.server_address[1:])
        bind(self)

    server.server_bind = server_bind


if __name__ == "__main__":
    on_loopback(http_server.RendezvousHTTPServer)
    on_loopback(http_server.KVStoreHTTPServer)
    run_commandline()
