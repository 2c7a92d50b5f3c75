"""The ranks that run: each started behind a keeper, on this machine or through ssh, and all of them ended together."""

import contextlib
import fcntl
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tfperf.errors import HorovodError
from tfperf.importing import START_UP_NOISE
from tfperf.parallel.launch.ending import LOOK, Ending
from tfperf.parallel.launch.environment import sent_environment
from tfperf.parallel.launch.output import Relay
from tfperf.parallel.launch.ssh import SSH_FAILED, first_line, ssh
from tfperf.processes import PIPE, ChildProcess, Patience

__all__ = ["Ended", "Failure", "Ranks", "first_cause"]

GRACE = 5.0
"""Seconds that a rank has to end by itself after SIGTERM."""

ELSEWHERE = 2.0
"""Seconds beyond these that a rank on another machine has, before its ssh is ended: it may be out of reach."""

OUTPUT_GRACE = 3.0
"""Seconds to wait for the end of the output of a rank that was ended or has failed; its reader may stand still."""

LONGEST_LINE = 2**20
"""Bytes that ssh may be sent before it reads: the most that Linux lets a user's pipe hold."""


@dataclass(frozen=True)
class Ended:
    """How one rank ended.

    Attributes:
        name: as the user is told, "rank 1" or "rank 1 on node2".
        code: exit code, 128 + N after signal N.
        by_us: it was told to end.
        blames_others: it failed because another rank went away.
        time: when, in seconds of `time.monotonic`.
        elsewhere: it ran on another machine, through ssh.
    """

    name: str
    code: int
    by_us: bool = False
    blames_others: bool = False
    time: float = 0.0
    elsewhere: bool = False

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and not well."""
        return self.code != 0 and not self.by_us

    def __str__(self) -> str:
        if self.code > 128 and self.code - 128 in set(signal.Signals):
            return f"{self.name} was killed by {signal.Signals(self.code - 128).name}"
        if self.code == SSH_FAILED and self.elsewhere:
            return f"{self.name} is lost: ssh has no connection to it any more, or it ended with exit code {self.code}"
        return f"{self.name} ended with exit code {self.code}"


@dataclass(frozen=True)
class Failure:
    """Why a launch failed: in words, one line, and as an exit code."""

    words: str
    code: int


def first_cause(ended: Iterable[Ended]) -> Ended | None:
    """The rank to name when some failed: the first in time among those that blame no other, if there are any."""
    failed = [rank for rank in ended if rank.failed]
    return min(failed, key=lambda rank: (rank.blames_others, rank.time), default=None)


class Ranks:
    """The running ranks of one launch.

    Each is waited for in the thread that started it, which looks every 0.1 s whether it is to end. So none waits for
    another one's end, and an error with one of them leaves the others alone.

    Args:
        command: what each rank runs.
        environment: the variables that all ranks share.
        ending: when this is asked for, all ranks are ended.
        exported: names of variables that ranks on other machines get beside those they need, see `sent_environment`.
        output_folder: where to copy what they print, `rank.<label>/stdout` and `stderr`; None: nowhere.
        hide_noise: leave out what TensorFlow writes on each healthy start.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        ending: Ending,
        exported: Sequence[str] = (),
        output_folder: Path | None = None,
        hide_noise: bool = True,
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._ending = ending
        self._exported = exported
        self._output_folder = output_folder
        self._hidden = START_UP_NOISE if hide_noise else None
        self._running: set[ChildProcess] = set()
        self._processes: dict[str, int] = {}
        self._over = False
        self.nobody_reads = False

    def run(
        self,
        name: str,
        *,
        label: str,
        prefix: str,
        variables: dict[str, str],
        host: str | None = None,
        end_on: Sequence[threading.Event] = (),
    ) -> Ended:
        """Start a rank, and wait for its end.

        Args:
            name: as the user is told.
            label: names its folder of output.
            prefix: put before each line that it prints.
            variables: its own, beside those that all share.
            host: where to start it, through ssh; None: on this machine.
            end_on: when one of these is set, the rank is ended.

        Raises:
            HorovodError: it cannot be started.
        """
        if self._is_over:
            return Ended(name, 128 + signal.SIGTERM, by_us=True)
        copies = self._copies(label)
        rank = self._start(name, self._environment | variables, host)
        self._running.add(rank)
        try:
            if host is None:
                self._processes[name] = rank.pid
            else:
                _send(rank, first_line(sent_environment(self._environment | variables, self._exported)))
            relays = self._relays(rank, prefix, copies)
            code, by_us = self._wait(rank, host, end_on)
            ended_at = time.monotonic()
            if self._come_to_their_end(relays, patient=code == 0 and not by_us):
                rank.close()
            blames_others = any(relay.saw_broken_ring for relay in relays)
            return Ended(name, code if code >= 0 else 128 - code, by_us, blames_others, ended_at, host is not None)
        finally:
            rank.end()
            self._processes.pop(name, None)
            self._running.discard(rank)

    def process(self, name: str) -> int | None:
        """The process of a rank; None: it has not been started, has ended, or runs on another machine."""
        return self._processes.get(name)

    def end(self) -> None:
        """Have all ranks end, and start no more; returns at once."""
        self._over = True

    def wait(self) -> None:
        """Wait until no rank runs any more, or those that do can be waited for no longer."""
        patience = Patience(GRACE + ELSEWHERE + OUTPUT_GRACE)
        while self._running and patience.left():
            time.sleep(LOOK)

    @property
    def _is_over(self) -> bool:
        return self._over or self._ending.asked

    def _wait(self, rank: ChildProcess, host: str | None, end_on: Sequence[threading.Event]) -> tuple[int, bool]:
        """Its exit code, and whether it was told to end."""
        patience: Patience | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                return rank.wait(LOOK), patience is not None
            if patience is not None:
                if not patience.left():
                    return rank.end(), True
            elif self._is_over or any(event.is_set() for event in end_on):
                patience = Patience(GRACE + ELSEWHERE)
                if host is None:
                    rank.tell_to_end()
                else:
                    _let_go(rank)

    def _come_to_their_end(self, relays: Sequence[Relay], *, patient: bool) -> bool:
        """Wait until all that a rank has printed was passed on; whether it was."""
        patience = Patience(OUTPUT_GRACE)
        while any(relay.is_alive() for relay in relays) and (patience.left() or (patient and not self._is_over)):
            for relay in relays:
                relay.join(LOOK)
        return not any(relay.is_alive() for relay in relays)

    def _start(self, name: str, environment: Mapping[str, str], host: str | None) -> ChildProcess:
        try:
            if host is None:
                return ChildProcess(self._command, stdout=PIPE, stderr=PIPE, environment=environment, grace=GRACE)
            keeper = [sys.executable, "-P", "-m", "tfperf.processes.keeper", "0", str(GRACE), *self._command]
            return ChildProcess(ssh(host, keeper), stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise HorovodError(f"cannot start {name}: {error.strerror}") from error

    def _copies(self, label: str) -> list[TextIO | None]:
        if self._output_folder is None:
            return [None, None]
        folder = self._output_folder / f"rank.{label}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return [(folder / stream).open("a", encoding="utf-8") for stream in ("stdout", "stderr")]
        except OSError as error:
            raise HorovodError(f"cannot write the ranks' output to {folder}: {error.strerror}") from error

    def _relays(self, rank: ChildProcess, prefix: str, copies: Sequence[TextIO | None]) -> list[Relay]:
        assert rank.stdout is not None
        assert rank.stderr is not None
        streams = ((rank.stdout, sys.stdout, None), (rank.stderr, sys.stderr, self._hidden))
        relays = [
            Relay(source, target, hidden=hidden, copy=copy, prefix=prefix, on_broken_pipe=self._nobody_reads)
            for (source, target, hidden), copy in zip(streams, copies, strict=True)
        ]
        for relay in relays:
            relay.start()
        return relays

    def _nobody_reads(self) -> None:
        self.nobody_reads = True
        self.end()


def _send(rank: ChildProcess, line: bytes) -> None:
    """Give ssh what it passes on, once it has a connection; this thread does not wait for that."""
    assert rank.stdin is not None
    with contextlib.suppress(OSError):
        fcntl.fcntl(rank.stdin, fcntl.F_SETPIPE_SZ, LONGEST_LINE)
    with contextlib.suppress(BrokenPipeError):  # ssh has failed, as its exit code will tell
        rank.stdin.write(line)
        rank.stdin.flush()


def _let_go(rank: ChildProcess) -> None:
    """Let the keeper at the other end of ssh end its rank in order."""
    assert rank.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # what it did not read is lost with it
        rank.stdin.close()
