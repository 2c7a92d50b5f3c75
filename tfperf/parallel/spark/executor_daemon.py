"""What each Spark executor starts, and forks its Python workers from: PySpark's daemon, with loopback servers."""

import socket

from tfperf.parallel.launch.access import listen_on_loopback_only as keep_horovod_on_loopback
from tfperf.parallel.private_network import LOOPBACK

__all__ = ["listen_on_loopback_only"]


def listen_on_loopback_only() -> None:
    """Make the servers that Horovod and TensorFlowOnSpark start in this process listen on loopback.

    They unpickle what they are sent; those of TensorFlowOnSpark ask for no key first. To be called in the
    driver and in each Python worker, before any of them starts. TensorFlow's own servers are not among
    them: see `private_network`.
    """
    from tensorflowonspark import reservation, util

    keep_horovod_on_loopback()
    util.get_ip_address = lambda: LOOPBACK  # the address that a node gives to the others
    reservation.Server.start_listening_socket = lambda _: socket.create_server((LOOPBACK, 0))


if __name__ == "__main__":
    from pyspark.daemon import manager

    listen_on_loopback_only()
    manager()
