"""A command that answers lines of JSON on its standard input with lines of JSON on its standard output."""

import json
import os
import select
from collections.abc import Callable
from typing import Any

from tfperf.processes.child_process import ChildProcess
from tfperf.processes.patience import SLICE, Patience

__all__ = ["Dialogue"]

Look = Callable[[Patience], object]


class Dialogue:
    """Questions to a process, and its answers, one after the other; no wait is longer than its deadline."""

    def __init__(self, process: ChildProcess) -> None:
        """Take a process.

        Args:
            process: its standard input and output are pipes, which nothing else uses.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._rest = b""

    def ask(self, question: Any, patience: Patience, look: Look = lambda _: None) -> Any:
        """Ask, and wait for the answer.

        Args:
            question: what JSON can hold.
            patience: the time for all of it.
            look: is called every 0.1 s, with the patience; what it raises ends the waiting.

        Raises:
            EOFError: the process has ended, or answers no more.
            TimeoutError: no time is left.
            ValueError: the answer is no JSON.
        """
        left = memoryview(json.dumps(question).encode() + b"\n")
        while len(left):
            if self._ready(self._input, select.POLLOUT, patience, look):
                try:
                    left = left[os.write(self._input, left) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise EOFError("it reads no more") from error
        return json.loads(self._line(patience, look))

    def listen(self, patience: Patience, look: Look = lambda _: None) -> Any:
        """Wait for the next line; as `ask`, without a question."""
        return json.loads(self._line(patience, look))

    def _line(self, patience: Patience, look: Look) -> bytes:
        """The pipe is read as bytes come, so that a process which hangs in the middle of a line is noticed too."""
        while b"\n" not in self._rest:
            if self._ready(self._output, select.POLLIN, patience, look):
                if not (piece := os.read(self._output, 65536)):
                    raise EOFError("it answers no more")
                self._rest += piece
            elif self._process.poll() is not None:
                raise EOFError("it has ended")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ready(self, pipe: int, wanted: int, patience: Patience, look: Look) -> bool:
        """Wait a little for a pipe.

        Raises:
            TimeoutError: it is not ready, and no time is left.
        """
        waiting = select.poll()
        waiting.register(pipe, wanted)
        ready = bool(waiting.poll(1000 * patience.slice(SLICE)))
        look(patience)
        if not ready and not patience.left():
            raise TimeoutError("no answer in time")
        return ready
