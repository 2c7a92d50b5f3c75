"""A command that is waited for."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tfperf.processes.child_process import PIPE, STDOUT, ChildProcess
from tfperf.processes.patience import SLICE, Patience

__all__ = ["Finished", "LastBytes", "run"]

MOST_OUTPUT, MOST_ERRORS = 2**26, 2**16
"""Bytes of a command's output that are kept, the last ones."""

DEADLINE = 600.0
"""Seconds for a command, unless its caller says otherwise."""

CLOSING = 5.0
"""Seconds for its pipes to close once all are gone that held them."""


class Finished(NamedTuple):
    """A command that has ended.

    Attributes:
        code: its exit code, -N after signal N.
        output: what it wrote to standard output.
        errors: what it wrote to standard error.
    """

    code: int
    output: str
    errors: str


class LastBytes:
    """Reads a pipe to its end, however much comes, and keeps the last bytes."""

    def __init__(self, pipe: IO[bytes], most: int = MOST_ERRORS) -> None:
        """Begin to read, in a thread.

        Args:
            pipe: is closed at its end.
            most: bytes to keep.
        """
        self._pipe, self._most, self._kept = pipe, most, bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, seconds: float = CLOSING) -> str:
        """Give what is kept, after a while in which the pipe may come to its end."""
        self._thread.join(seconds)
        return bytes(self._kept).decode(errors="replace")

    def _read(self) -> None:
        # Who owns the pipe may close it before a read, which then raises ValueError: that is its end as well.
        with contextlib.suppress(ValueError), self._pipe:
            while piece := self._pipe.read1(65536):  # type: ignore[attr-defined]
                self._kept += piece
                del self._kept[: -self._most]


def run(
    command: Sequence[str | Path],
    *,
    deadline: float = DEADLINE,
    stdin: bytes = b"",
    merged: bool = False,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    look: Callable[[Patience], object] = lambda _: None,
) -> Finished:
    """Run a command to its end; none of what it starts outlives the call.

    Args:
        command: a program and its arguments.
        deadline: seconds.
        stdin: what it reads; at most 64 KiB.
        merged: what it writes to standard error goes to `output` too.
        environment: all variables; None: those of this process.
        folder: where it runs; None: where this process does.
        look: is called every 0.1 s, with the time that is left; what it raises ends the command.

    Raises:
        TimeoutError: it was not done in time, and was ended. This is an OSError too: catch it first.
        OSError: it cannot be started; `filename` is the program.
    """
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": STDOUT if merged else PIPE}
    with ChildProcess(command, **pipes, environment=environment, folder=folder) as child:  # type: ignore[arg-type]
        assert child.stdin is not None
        assert child.stdout is not None
        output = LastBytes(child.stdout, MOST_OUTPUT)
        errors = LastBytes(child.stderr) if child.stderr is not None else None
        try:
            child.stdin.write(stdin)
            child.stdin.close()
        except BrokenPipeError:  # it does not want to know
            pass
        code = _watched(child, deadline, look)
        return Finished(code, output.text(), errors.text() if errors else "")


def _watched(child: ChildProcess, deadline: float, look: Callable[[Patience], object]) -> int:
    """The exit code."""
    patience = Patience(deadline)
    while True:
        look(patience)
        try:
            return child.wait(patience.slice(SLICE))
        except TimeoutError:
            if not patience.left():
                raise TimeoutError(f"expected an end within {deadline:g} s") from None
