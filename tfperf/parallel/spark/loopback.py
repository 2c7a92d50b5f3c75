"""Servers of Horovod and TensorFlowOnSpark that listen on all interfaces: on loopback instead, in this process."""

import socket

from tfperf.parallel.launch.loopback import LOOPBACK
from tfperf.parallel.launch.loopback import listen_on_loopback_only as keep_horovod_on_loopback

__all__ = ["LOOPBACK", "listen_on_loopback_only"]


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
