"""A process that ends with the one that started it, where no keeper stands between them."""

import ctypes
import os
import runpy
import signal
import sys

__all__ = ["end_with_parent", "main"]

PR_SET_PDEATHSIG = 1  # of prctl(2)


def end_with_parent(parent: int) -> bool:
    """Have Linux kill this process, even while it stands still, when the thread that started it ends.

    Args:
        parent: the process that started this one.

    Returns:
        Whether there is anything left to do: False where the parent has ended before.
    """
    if sys.platform != "linux":
        return True
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def main() -> None:
    """Run what the arguments say, if the parent still lives."""
    parent, *command = sys.argv[1:]
    if not end_with_parent(int(parent)):
        return
    if command[0] != "-m":
        try:
            os.execvp(command[0], command)  # noqa: S606  # what Linux was told stays
        except OSError as error:
            sys.exit(f"{command[0]}: {error.strerror}")
    os.write(1, b"\n")
    sys.argv[1:] = command[2:]
    runpy.run_module(command[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
