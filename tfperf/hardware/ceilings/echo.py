"""The other end of a loopback connection, run as a script: it sends back single bytes, then takes in very many.

Its standard input is the connection; its arguments are the number of rounds, and in each of them the number of bytes
to send back, and of those to take in. It ends with the connection.
"""

import socket
import sys

__all__ = ["answer"]


def answer(line: socket.socket, echoes: int, size: int) -> None:
    """Send back so many bytes one by one, then take in `size` bytes, and send one when all are there."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(echoes):
        byte = line.recv(1)
        if not byte:
            return
        line.sendall(byte)
    buffer, left = memoryview(bytearray(2**20)), size
    while left > 0:
        got = line.recv_into(buffer)
        if not got:
            return
        left -= got
    line.sendall(b".")


if __name__ == "__main__":
    with socket.socket(fileno=sys.stdin.fileno()) as connection:
        rounds, trips, stream = map(int, sys.argv[1:])
        for _ in range(rounds):
            answer(connection, trips, stream)
