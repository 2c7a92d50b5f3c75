"""The process that `in_private_network` starts: `python -m tfperf.parallel.private_process PIPE`."""

import contextlib
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from tfperf.errors import TfperfError, in_one_line
from tfperf.parallel.private_network import leave_network

__all__ = ["main"]


def main() -> None:
    """Leave the network, call the function that the pipe's other end sends, and send its result."""
    pipe = int(sys.argv[1])
    with contextlib.suppress(OSError):  # the function can ask whether it took effect
        leave_network()  # first of all: NumPy starts threads when it is imported
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Connection(pipe) as connection, contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        connection.send_bytes(_reply(connection.recv_bytes()))


def _reply(message: bytes) -> bytes:
    """Call what the message says; pickled: the words of a failure or "", and the result."""
    import cloudpickle

    name = "the function"
    try:
        sys.path[:], function, args, kwargs = cloudpickle.loads(message)
        name = getattr(function, "__name__", name)
        return pickle.dumps(("", function(*args, **kwargs)))
    except TfperfError as error:
        return pickle.dumps((str(error), None))
    except Exception as error:
        return pickle.dumps((f"{name} has failed in a process of its own: {in_one_line(error)}", None))


if __name__ == "__main__":
    main()
