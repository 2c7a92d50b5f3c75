"""Where a plan runs: in a process of its own, within limits and leaving nothing behind, or in this one."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfperf.engines.building import build
from tfperf.engines.plan import Plan
from tfperf.errors import TfperfError, in_one_line
from tfperf.importing import START_UP_NOISE
from tfperf.processes import PIPE, ChildProcess, Dialogue, LastBytes, Patience
from tfperf.trials.trial import Status, TrialError
from tfperf.trials.worker import Worker, answer_of

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["Child", "Here", "Host"]

DEADLINE = 600.0
"""Seconds for one answer."""

GRACE = 5.0
"""Seconds for a process whose output has ended to end."""

SLICE = 0.1
"""Seconds between two looks at its memory."""

FAMILY_SLICES = 5
"""Looks at its memory for one at that of the processes that it started: finding them reads the table of all."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "1"}
"""What TensorFlow only informs of would be taken for the last words of a process that dies."""

LAST_WORDS = 8192
"""Bytes of its output that are kept."""


class Child:
    """A process that answers a line of JSON with a line of JSON: `python -m` a module that calls `worker.serve`."""

    def __init__(
        self,
        *,
        module: str = "tfperf.trials.worker",
        environment: Mapping[str, str] = MappingProxyType({}),
        deadline: float = DEADLINE,
        memory_limit: int | None = None,
    ) -> None:
        """Start it; nothing is loaded yet.

        Args:
            module: what it runs.
            environment: variables that it has beside those of this process, or in their place.
            deadline: seconds for each answer, after which it is ended.
            memory_limit: bytes that it and all it started may use, beyond which it is ended; None: no limit.

        Raises:
            OSError: it cannot be started.
        """
        self._deadline, self._memory_limit = deadline, memory_limit
        self._over: TrialError | None = None
        self._asking = threading.RLock()
        self._looks, self._next_look = 0, 0.0
        self._stands_still = self._closed = False
        command = [sys.executable, "-P", "-m", module]
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        self._process = ChildProcess(command, **pipes, environment=QUIET | os.environ | dict(environment))  # type: ignore[arg-type]
        self._dialogue = Dialogue(self._process)
        assert self._process.stderr is not None
        self._last_words = LastBytes(self._process.stderr, LAST_WORDS)

    @property
    def pid(self) -> int:
        """The process number; the process leads a group of its own."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._over is None and self._process.poll() is None

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request: a method of the module's worker, with its arguments.

        Raises:
            TrialError: the worker says that it cannot, died, was closed, did not answer in time, or took too much
                memory.
        """
        with self._asking:
            if self._over is not None:
                raise self._over
            try:
                answer = self._dialogue.ask([name, arguments], Patience(self._deadline), self._look)
            except TrialError:
                raise
            except TimeoutError as error:
                words = f"no answer within {self._deadline:g} s; its process was ended"
                raise self._end(Status.TIMED_OUT, words) from error
            except (EOFError, OSError, ValueError) as error:  # or a line that is no JSON
                raise self._how_it_died() from error
            except BaseException:  # as Ctrl-C
                self._end(Status.CRASHED, "it was interrupted; its process was ended")
                raise
        if "error" in answer:
            raise TrialError(Status(answer["status"]), answer["error"])
        return answer["answer"]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have it and what it started stand still meanwhile; its deadline waits too."""
        self._stands_still = True
        try:
            with self._process.stopped():
                yield
        finally:
            self._stands_still = False

    @contextlib.contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Have it and what it started stand still meanwhile, but between `wake` and `rest`.

        What takes turns with it runs alone then: threads of many engines look for work for a while after each call.
        """
        with self._process.stopped():
            yield

    def rest(self) -> None:
        """Stand still; it cannot be asked until `wake`."""
        self._process.stop()

    def wake(self) -> None:
        """Go on."""
        self._process.go_on()

    def close(self) -> None:
        """End the process and all that it started, at once: it has nothing to put in order."""
        if self._closed:
            return
        self._over = self._over or TrialError(Status.CRASHED, "its process was ended")
        self._process.end()
        with self._asking:  # another thread may wait for an answer, and learns now that there is none
            self._closed = True
            self._process.close()

    def kill(self) -> None:
        """End it without waiting for anything."""
        self._over = self._over or TrialError(Status.CRASHED, "its process was ended")
        self._process.kill()

    def _look(self, patience: Patience) -> None:
        """Look now and then at the memory, however short the answers are in coming."""
        if self._stands_still:
            patience.lose_nothing()
        if self._memory_limit is None or (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + SLICE
        self._looks += 1
        used = self._process.memory(whole=self._looks % FAMILY_SLICES == 0)
        if used > self._memory_limit:
            limit = self._memory_limit / 2**30
            raise self._end(Status.OUT_OF_MEMORY, f"took more than {limit:.3g} GiB of memory; its process was ended")

    def _end(self, status: Status, words: str) -> TrialError:
        """End it: it would answer the next question with what it was asked now."""
        self._over = self._over or TrialError(status, words)
        self._process.end()
        return self._over

    def _how_it_died(self) -> TrialError:
        if self._over is not None:  # it was closed by another thread
            return self._over
        try:
            code = self._process.wait(GRACE)
        except TimeoutError:
            return self._end(Status.CRASHED, "closed the pipe for its answers; its process was ended")
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        why = ", as Linux does where memory runs out" if code == -signal.SIGKILL else ""
        lines = [line.strip() for line in self._last_words.text().splitlines()]
        said = [line for line in lines if line and not START_UP_NOISE.search(line)]
        last = f": {said[-1][:300]}" if said else ""
        self._over = TrialError(Status.CRASHED, f"its process {how}{why}{last}")
        return self._over


class Here:
    """Answers as a plan's process does, where no other can open the net: what a notebook's own classes leave.

    It has the threads of this process, no limits, and never stands still.
    """

    alive = True

    def __init__(self) -> None:
        """Start nothing."""
        self._worker = Worker()

    def build(self, plan: Plan, servable: "Servable") -> dict[str, Any]:
        """Make a plan real; what `Worker.build` says of it.

        Raises:
            TrialError: the engine cannot, whatever it raises, or the plan asks for threads.
        """
        if plan.threads is not None:
            raise TrialError(Status.REFUSED, f"{plan}: the net's code is in this process alone, with its threads")
        began = time.perf_counter()
        try:
            runner = build(servable, plan)
        except TfperfError as error:
            raise TrialError(Status.REFUSED, str(error)) from error
        except Exception as error:  # whatever the net's code or an engine raises: it is the answer, as in a process
            raise TrialError(Status.REFUSED, f"{plan}: {in_one_line(error)}") from error
        return self._worker.take(runner, time.perf_counter() - began)

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request.

        Raises:
            TrialError: the worker says that it cannot.
        """
        told = answer_of(self._worker, name, arguments)
        if "error" in told:
            raise TrialError(Status(told["status"]), told["error"])
        return told["answer"]

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Change nothing."""
        return contextlib.nullcontext()

    taking_turns = paused

    def rest(self) -> None:
        """Do nothing: it does nothing between requests."""

    wake = rest

    def close(self) -> None:
        """Let the plan go."""
        self._worker = Worker()

    kill = close


Host = Child | Here


def _signal_name(number: int) -> str:
    """Its name, where it has one."""
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")
