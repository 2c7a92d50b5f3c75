"""The ranks that run: each started behind a keeper, on this machine or through ssh, and all of them ended together."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tfperf.errors import HorovodError
from tfperf.parallel.launch.output import Relay
from tfperf.parallel.launch.ssh import SSH_FAILED, first_line, ssh
from tfperf.start_up_noise import START_UP_NOISE

__all__ = ["Ended", "Failure", "Ranks", "first_cause"]

LAST_RESORT = 15.0
"""Seconds after which a keeper that was told to end is killed: behind ssh, its machine may be out of reach."""

OUTPUT_GRACE = 5.0
"""Seconds to wait for the end of a rank's output once it is gone."""


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

    Args:
        command: what each rank runs.
        environment: the variables that all ranks share.
        output_folder: where to copy what they print, `rank.<label>/stdout` and `stderr`; None: nowhere.
        hide_noise: leave out what TensorFlow writes on each healthy start.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output_folder: Path | None = None,
        hide_noise: bool = True,
    ) -> None:
        self._command = [sys.executable, "-P", "-m", "tfperf.parallel.launch.keeper", *command]
        self._environment = dict(environment)
        self._output_folder = output_folder
        self._hidden = START_UP_NOISE if hide_noise else None
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._told: set[subprocess.Popen[bytes]] = set()
        self._keepers: dict[str, int] = {}
        self._ending = False
        self.nobody_reads = False

    def run(
        self,
        name: str,
        *,
        label: str,
        prefix: str,
        variables: dict[str, str],
        host: str | None = None,
        end_on: Iterable[threading.Event] = (),
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
        from horovod.runner.util.threads import on_event

        environment = self._environment | variables
        with self._lock:
            if self._ending:
                return Ended(name, 128 + signal.SIGTERM, by_us=True)
            copies = self._copies(label)
            keeper = self._start(name, environment, host)
            self._running.add(keeper)
            if host is None:
                self._keepers[name] = keeper.pid
        relays = self._relays(keeper, prefix, copies)
        gone = threading.Event()
        for event in end_on:
            on_event(event, self._tell_to_end, (keeper,), stop=gone, silent=True)
        code = keeper.wait()
        ended_at = time.monotonic()
        gone.set()
        _close_lifeline(keeper)
        for relay in relays:
            relay.join(OUTPUT_GRACE)
        with self._lock:
            self._running.discard(keeper)
            self._keepers.pop(name, None)
            by_us = keeper in self._told
        blames_others = any(relay.saw_broken_ring for relay in relays)
        return Ended(name, code if code >= 0 else 128 - code, by_us, blames_others, ended_at, host is not None)

    def keeper(self, name: str) -> int | None:
        """The process that runs a rank; None: it has not been started, or runs on another machine."""
        return self._keepers.get(name)

    def end(self) -> None:
        """Tell all ranks to end, and start no more."""
        with self._lock:
            self._ending = True
            running = list(self._running)
        for keeper in running:
            self._tell_to_end(keeper)

    def wait(self) -> None:
        """Wait until no rank runs any more."""
        while self._running:
            time.sleep(0.05)

    def _start(self, name: str, environment: Mapping[str, str], host: str | None) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        command = self._command if host is None else ssh(host, self._command)
        variables = environment if host is None else None  # ssh runs with our own
        try:
            keeper = subprocess.Popen(
                command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise HorovodError(f"cannot start {name}: {error.strerror}") from error
        if host is not None:
            assert keeper.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # ssh has failed, as its exit code will tell
                keeper.stdin.write(first_line(environment))
                keeper.stdin.flush()
        return keeper

    def _tell_to_end(self, keeper: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            if keeper in self._told:
                return
            self._told.add(keeper)
        _close_lifeline(keeper)
        last_resort = threading.Timer(LAST_RESORT, keeper.kill)
        last_resort.daemon = True
        last_resort.start()

    def _copies(self, label: str) -> list[TextIO | None]:
        if self._output_folder is None:
            return [None, None]
        folder = self._output_folder / f"rank.{label}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return [(folder / stream).open("a", encoding="utf-8") for stream in ("stdout", "stderr")]
        except OSError as error:
            raise HorovodError(f"cannot write the ranks' output to {folder}: {error.strerror}") from error

    def _relays(
        self, keeper: "subprocess.Popen[bytes]", prefix: str, copies: Sequence[TextIO | None]
    ) -> tuple[Relay, Relay]:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        relays = (
            Relay(
                keeper.stdout, sys.stdout, hidden=None, copy=copies[0], prefix=prefix, on_broken_pipe=self._nobody_reads
            ),
            Relay(
                keeper.stderr,
                sys.stderr,
                hidden=self._hidden,
                copy=copies[1],
                prefix=prefix,
                on_broken_pipe=self._nobody_reads,
            ),
        )
        for relay in relays:
            relay.start()
        return relays

    def _nobody_reads(self) -> None:
        self.nobody_reads = True
        self.end()


def _close_lifeline(keeper: "subprocess.Popen[bytes]") -> None:
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # what it did not read is lost with it
        keeper.stdin.close()
