"""A process that answers requests, within limits of time and memory, and leaves nothing behind."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psutil

from tfperf.engines.trial import Status
from tfperf.errors import EngineError
from tfperf.start_up_noise import START_UP_NOISE

__all__ = ["Child", "TrialError"]

DEADLINE = 600.0
"""Seconds for one answer."""

GRACE = 5.0
"""Seconds for a process whose output has ended to end."""

SLICE = 0.1
"""Seconds between two looks at a process that is waited for."""

FAMILY_SLICES = 5
"""Looks at its memory for one at that of the processes that it started: finding them reads the table of all."""

MARK = "TFPERF_TRIAL"
"""Environment variable that tells the descendants of a child, wherever they have put themselves."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "1"}
"""What TensorFlow only informs of would be taken for the last words of a process that dies."""

KILL_ROUNDS = 10
"""A process may start another while it is being ended; after each round the wait for the next is twice as long."""

FIRST_WAIT = 0.002
"""Seconds after the first round."""

LAST_WORDS = 8192
"""Bytes of its output that are kept."""


class TrialError(EngineError):
    """A plan did not run; `status` says how far it came."""

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status


class Child:
    """`python -m tfperf.engines.worker`, which answers a line of JSON with a line of JSON."""

    def __init__(self, *, deadline: float = DEADLINE, memory_limit: int | None = None) -> None:
        """Start it; nothing is loaded yet.

        Args:
            deadline: seconds for each answer, after which it is ended.
            memory_limit: bytes that it and all it started may use, beyond which it is ended; None: no limit.
        """
        self._deadline, self._memory_limit = deadline, memory_limit
        self._mark = uuid.uuid4().hex
        self._over: TrialError | None = None
        self._asking = threading.RLock()
        self._looks, self._next_look = 0, 0.0
        self._still_since: float | None = None
        self._stood_still = 0.0
        self._outside: list[psutil.Process] | None = None
        self._last_words = b""
        self._closed = False
        started: Future[subprocess.Popen[bytes]] = Future()
        self._companion = threading.Thread(target=self._accompany, args=[started], daemon=True)
        self._companion.start()
        try:
            self._process = started.result()
        except BaseException:  # as Ctrl-C, while it starts
            started.add_done_callback(_kill_unless_failed)
            raise

    @property
    def pid(self) -> int:
        """The process number; the process leads a group of its own."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._over is None and self._process.poll() is None

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request: a method of `worker.Worker`, with its arguments.

        Raises:
            TrialError: the worker says that it cannot, died, was closed, did not answer in time, or took too much
                memory.
        """
        with self._asking:
            if self._over is not None:
                raise self._over
            try:
                self._process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")  # type: ignore[union-attr]
                self._process.stdin.flush()  # type: ignore[union-attr]
                answer = json.loads(self._read_line())
            except TrialError:
                raise
            except OSError as error:
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
        self._still_since = time.monotonic()
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            self._signal(signal.SIGCONT)
            self._stood_still += time.monotonic() - self._still_since
            self._still_since = None

    @contextlib.contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Have it and what it started stand still meanwhile, but between `wake` and `rest`.

        What takes turns with it runs alone then: threads of many engines look for work for a while after each call.
        """
        self._outside = [one for one in self._everyone() if _group_of(one) != self.pid]
        self.rest()
        try:
            yield
        finally:
            self.wake()
            self._outside = None

    def rest(self) -> None:
        """Stand still; it cannot be asked until `wake`."""
        self._signal(signal.SIGSTOP, self._outside)

    def wake(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT, self._outside)

    def close(self) -> None:
        """End the process and all that it started, at once: it has nothing to put in order."""
        if self._closed:
            return
        self._over = self._over or TrialError(Status.CRASHED, "its process was ended")
        self._kill()
        with self._asking:  # another thread may wait for an answer, and learns now that there is none
            self._closed = True
            self._process.wait()
            with contextlib.suppress(OSError):  # what was not sent is not worth an error
                self._process.stdin.close()  # type: ignore[union-attr]
            self._process.stdout.close()  # type: ignore[union-attr]
        self._companion.join(GRACE)

    def _accompany(self, started: "Future[subprocess.Popen[bytes]]") -> None:
        """Start the process, read what it prints, however much, and keep the end; until the process ends.

        In a thread that lives as long: Linux takes the end of the thread that started a process for that of its parent.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tfperf.with_parent", str(os.getpid()), "-m", "tfperf.engines.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=QUIET | os.environ | {MARK: self._mark},
                # A group, as Ctrl-C is the parent's, which then ends this. No session: of a group that stands still
                # when its parent in the same session ends, Linux ends all, also what never asked to end with this
                process_group=0,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)  # from now on it ends with this process, also while it stands still
        started.set_result(process)
        with process.stderr as pipe:
            while piece := pipe.read1(65536):  # type: ignore[attr-defined]
                self._last_words = (self._last_words + piece)[-LAST_WORDS:]
        process.wait()

    def _read_line(self) -> bytes:
        """One answer; the pipe is read as bytes come, so that a process which hangs in the middle is noticed too."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        until = self._time() + self._deadline
        line = b""
        while not line.endswith(b"\n"):
            if waiting.poll(1000 * SLICE):
                if not (piece := os.read(pipe, 65536)):
                    raise self._how_it_died()
                line += piece
            elif self._process.poll() is not None:  # and a process that it started holds the pipe open
                raise self._how_it_died()
            self._check_memory()
            if self._time() > until:
                raise self._end(Status.TIMED_OUT, f"no answer within {self._deadline:g} s; its process was ended")
        return line

    def _time(self) -> float:
        """A clock in seconds that stands still when the process does."""
        since = self._still_since
        return (time.monotonic() if since is None else since) - self._stood_still

    def _check_memory(self) -> None:
        """Look now and then, however short the answers are in coming."""
        if self._memory_limit is None or (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + SLICE
        self._looks += 1
        used = 0
        with contextlib.suppress(psutil.Error):
            whole = psutil.Process(self.pid)
            for process in [whole, *(whole.children(recursive=True) if self._looks % FAMILY_SLICES == 0 else [])]:
                with contextlib.suppress(psutil.Error):
                    used += process.memory_info().rss
        if used > self._memory_limit:
            limit = self._memory_limit / 2**30
            raise self._end(Status.OUT_OF_MEMORY, f"took more than {limit:.3g} GiB of memory; its process was ended")

    def _end(self, status: Status, words: str) -> TrialError:
        """End it: it would answer the next question with what it was asked now."""
        self._over = self._over or TrialError(status, words)
        self._kill()
        return self._over

    def _how_it_died(self) -> TrialError:
        if self._over is not None:  # it was closed by another thread
            return self._over
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return self._end(Status.CRASHED, "closed the pipe for its answers; its process was ended")
        self._kill()
        self._companion.join(GRACE)
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        why = ", as Linux does where memory runs out" if code == -signal.SIGKILL else ""
        lines = [line.strip() for line in self._last_words.decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not START_UP_NOISE.search(line)]
        last = f": {said[-1][:300]}" if said else ""
        self._over = TrialError(Status.CRASHED, f"its process {how}{why}{last}")
        return self._over

    def _kill(self) -> None:
        for turn in range(KILL_ROUNDS):
            left = self._everyone()
            if turn == 0 or left:
                self._signal(signal.SIGKILL, left)
            if not left:
                return
            time.sleep(FIRST_WAIT * 2**turn)

    def _signal(self, number: signal.Signals, everyone: list[psutil.Process] | None = None) -> None:
        everyone = self._everyone() if everyone is None else everyone
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for process in everyone:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def _everyone(self) -> list[psutil.Process]:
        """It and what it started: all below it, and all that carry its mark, wherever they have put themselves."""
        found = list(_with_mark(self._mark))
        if self._process.poll() is None:  # otherwise its number may be another's
            with contextlib.suppress(psutil.Error):
                found += psutil.Process(self.pid).children(recursive=True)
        return [process for process in set(found) if _lives(process)]


def _kill_unless_failed(started: "Future[subprocess.Popen[bytes]]") -> None:
    if started.exception() is None:
        process = started.result()
        process.kill()
        process.stdin.close()  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]


def _with_mark(mark: str) -> Iterator[psutil.Process]:
    """The processes that inherited this mark, as a build server finds what its jobs left running."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                yield process


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal_name(number: int) -> str:
    """Its name, where it has one."""
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")
