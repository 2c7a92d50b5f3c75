"""What ranks print, passed on line by line."""

import io
import re
import sys
import threading
from collections.abc import Callable
from typing import IO, TextIO

__all__ = ["Relay", "say"]

BROKEN_RING = re.compile(r"Horovod has been shut down|HorovodInternalError|Horovod background loop uncaught exception")
"""What a rank writes that fails because another one went away."""

PATIENCE = 1.0
"""Seconds to wait for the end of another line: who reads the ranks' output may have stopped to."""

_one_line_at_a_time = threading.Lock()


def say(message: str) -> None:
    """Tell the user something, beside what the ranks print."""
    whole = _one_line_at_a_time.acquire(timeout=PATIENCE)
    try:
        print(f"tfperf launch: {message}", file=sys.stderr, flush=True)
    finally:
        if whole:
            _one_line_at_a_time.release()


class Relay(threading.Thread):
    """Passes one stream of one rank on to one of ours until it ends, each line with the rank's prefix.

    Args:
        source: the rank's end of a pipe.
        target: where to, sys.stdout or sys.stderr.
        prefix: put before each line.
        hidden: lines in which this is found are left out.
        copy: gets every line as it is; closed at the end.
        on_broken_pipe: called when nobody reads the target any more.
    """

    def __init__(
        self,
        source: IO[bytes],
        target: TextIO,
        *,
        prefix: str,
        hidden: re.Pattern[str] | None,
        copy: TextIO | None,
        on_broken_pipe: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._target = target
        self._prefix = prefix
        self._hidden = hidden
        self._copy = copy
        self._on_broken_pipe = on_broken_pipe
        self.saw_broken_ring = False

    def run(self) -> None:
        """Pass on until the end of the stream."""
        # newline="" also ends a line at \r, as progress bars do, and keeps it
        with io.TextIOWrapper(self._source, encoding="utf-8", errors="replace", newline="") as lines:
            for line in lines:
                self.saw_broken_ring = self.saw_broken_ring or bool(BROKEN_RING.search(line))
                self._write_copy(line)
                if not (self._hidden and self._hidden.search(line)):
                    self._pass_on(line)
        if self._copy:
            self._copy.close()

    def _write_copy(self, line: str) -> None:
        if self._copy is None:
            return
        try:
            self._copy.write(line)
            self._copy.flush()
        except OSError as error:
            say(f"no more copies of the output: {error}")
            self._copy = None

    def _pass_on(self, line: str) -> None:
        text = f"{self._prefix}{line}" if line.endswith(("\n", "\r")) else f"{self._prefix}{line}\n"
        try:
            with _one_line_at_a_time:
                self._target.write(text)
                self._target.flush()
        except OSError:  # a closed pipe, a terminal that is gone
            self._on_broken_pipe()
