"""Rehearse elastic training on one machine: workers die and join at batches that were set before.

The program that wants to know what a death costs calls `rehearse`, which starts workers under `tfperf launch` on hosts
that are names of this machine. Each worker trains as it would anywhere, and has a `RehearsedWorker` beside it::

    worker = RehearsedWorker()

    def train_on(number):
        with worker.training_on(number, hvd.size()):
            step(number)

Horovod's own tests of elastic training do the same by an "exit schedule" and a "discovery schedule".
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfperf.errors import TfperfError
from tfperf.parallel.launch.hosts import is_this_machine
from tfperf.processes import STDOUT, ChildProcess
from tfperf.processes.signals import handling

__all__ = ["Rehearsal", "RehearsedWorker", "TrainedBatch", "rehearse"]

DEADLINE = 240.0
"""Seconds for all that the workers do."""

ENDING = 15.0
"""Seconds that the launcher has to end its workers and itself; it needs 15 at most."""

LAST_LINES = 3
"""Lines of the workers' output that an error shows."""

_FOLDER = "TFPERF_REHEARSAL"
"""Environment variable with the folder that the workers of a rehearsal share."""

_SCHEDULE, _HOSTS, _RESULTS = "schedule.json", "hosts", "results.npz"


class TrainedBatch(NamedTuple):
    """One batch that one worker trained on, whether it counts in the end or was lost by a death."""

    host: str
    """Where the worker ran."""
    number: int
    """Which batch it was."""
    workers: int
    """How many workers shared it."""
    begin: float
    """When the worker began with it, in seconds of `time.monotonic`, which all processes of a machine share."""
    end: float
    """When it was done."""


class Rehearsal(NamedTuple):
    """What came of a rehearsal."""

    batches: tuple[TrainedBatch, ...]
    """What all workers trained on, by the end of each batch."""
    deaths: dict[str, float]
    """Host -> when its worker was killed, in seconds of `time.monotonic`."""
    results: dict[str, list[NDArray[Any]]]
    """What rank 0 handed in at the end."""

    def repeated(self) -> list[int]:
        """The batches that a worker trained on twice: those between the last commit and a death."""
        times = Counter((batch.host, batch.number) for batch in self.batches)
        return sorted({number for (_, number), count in times.items() if count > 1})

    def recovery(self) -> tuple[float, float]:
        """The seconds from the first death to the end of the next batch, and until the lost batches were done again.

        Raises:
            ValueError: nobody died, or the death lost no batch.
        """
        lost = self.repeated()
        if not lost:
            raise ValueError("expected a death that lost batches. Received: none")
        death = min(self.deaths.values())
        after = [batch for batch in self.batches if batch.begin > death]
        again = next(batch.end for batch in after if batch.number == lost[-1])
        return after[0].end - death, again - death

    def joining(self, host: str) -> float:
        """The seconds without a batch until the worker on a host that joined had done its first one.

        Raises:
            ValueError: no worker on that host has trained, or none had trained before it.
        """
        first = next((batch for batch in self.batches if batch.host == host), None)
        before = [batch.end for batch in self.batches if first and batch.end < first.begin]
        if first is None or not before:
            raise ValueError(f"expected a host that joined while others trained. Received: {host}")
        return first.end - max(before)

    def draw(self, figure: Any) -> None:
        """Draw on a matplotlib figure which worker trained on which batch and when: near the first death, and in all.

        Raises:
            ValueError: nobody died, or the death lost no batch.
        """
        near, whole = figure.subplots(1, 2)
        (doomed, death), (recovery, _) = min(self.deaths.items(), key=lambda one: one[1]), self.recovery()
        for axes in (near, whole):
            for host, marker in zip(dict.fromkeys(batch.host for batch in self.batches), cycle("ox+s^"), strict=False):
                points = [(batch.end - death, batch.number) for batch in self.batches if batch.host == host]
                axes.plot(*zip(*points, strict=True), marker, markersize=5, markerfacecolor="none", label=host)
            axes.axvline(0, color="black", linewidth=1)
            axes.set(xlabel="seconds after the kill", ylabel="batch")
        first, last = self.repeated()[0], self.repeated()[-1]
        near.set(xlim=(-recovery / 2, 1.5 * recovery), ylim=(first - 10, last + 10))
        near.set_title(f"The worker on {doomed} is killed")
        whole.set_title("The whole training")
        whole.legend(title="worker on")


class RehearsedWorker:
    """What a worker does for a rehearsal beside training: it keeps to the schedule, and notes when batches are done.

    In a process that is no worker of a rehearsal it does nothing, so a program may always have one.
    """

    def __init__(self) -> None:
        self._host = os.environ.get("HOROVOD_HOSTNAME", "")
        self._folder = Path(os.environ[_FOLDER]) if _FOLDER in os.environ else None
        self._deaths: dict[str, int] = {}
        self._joins: dict[str, int] = {}
        if self._folder:
            self._deaths, self._joins = json.loads((self._folder / _SCHEDULE).read_text(encoding="utf-8"))

    @property
    def is_rehearsing(self) -> bool:
        """Whether this process is a worker of a rehearsal."""
        return self._folder is not None

    @contextlib.contextmanager
    def training_on(self, number: int, workers: int) -> Iterator[None]:
        """Surround the training on a batch.

        Before it, this process is killed if the schedule says so, and the hosts appear that are to join.

        Args:
            number: which batch it is.
            workers: how many workers share it.
        """
        begin = time.monotonic()
        if self._folder:
            self._keep_to_the_schedule(number, begin)
        yield
        self._note(number=number, workers=workers, begin=begin, end=time.monotonic())

    def hand_in(self, **results: Sequence[Any]) -> None:
        """Give the rehearsal what training came to, for `Rehearsal.results`; rank 0 does so, at its end.

        Args:
            **results: sequences of numbers or arrays.
        """
        if self._folder:
            arrays = {f"{name} {place}": one for name, values in results.items() for place, one in enumerate(values)}
            np.savez(self._folder / _RESULTS, **arrays)

    def _keep_to_the_schedule(self, number: int, now: float) -> None:
        assert self._folder is not None
        if self._deaths.get(self._host) == number:
            self._note(killed=now)
            os.kill(os.getpid(), signal.SIGKILL)
        for host, joins_at in self._joins.items():
            if joins_at == number:
                with (self._folder / _HOSTS).open("a", encoding="utf-8") as file:
                    file.write(f"{host}:1\n")  # each worker adds it; `tfperf launch` takes equal lines for one

    def _note(self, **what: Any) -> None:
        """Write at once, so that the note outlives the worker."""
        if self._folder:
            with (self._folder / f"{self._host}.notes").open("a", encoding="utf-8") as notes:
                notes.write(f"{json.dumps(what)}\n")


def rehearse(
    command: Sequence[str],
    hosts: Sequence[str],
    *,
    deaths: Mapping[str, int],
    joins: Mapping[str, int],
    deadline: float = DEADLINE,
) -> Rehearsal:
    """Run elastic training on this machine, kill workers and add hosts on schedule, and tell what happened when.

    The workers end with this function, whatever happens: on an error, at the deadline, on Ctrl-C and SIGTERM, and where
    this process is killed (on Linux).

    Args:
        command: what each worker runs, with one `RehearsedWorker` in it. It runs in a scratch folder, which is removed
            at the end with all that the workers left there.
        hosts: where workers run at the start, one each: names of this machine, as localhost, 127.0.0.1 and 127.1.
        deaths: host -> the batch at whose beginning its worker is killed.
        joins: host -> the batch at whose beginning the launcher learns of it, and starts a worker there.
        deadline: seconds for the whole.

    Raises:
        ValueError: a host is not this machine.
        TfperfError: the workers failed or were not done in time, or rank 0 handed nothing in.
        KeyboardInterrupt: on Ctrl-C, and on SIGTERM.
    """
    if elsewhere := [host for host in (*hosts, *joins) if not is_this_machine(host)]:
        raise ValueError(f"expected hosts that are names of this machine. Received: {elsewhere[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / _SCHEDULE).write_text(json.dumps([dict(deaths), dict(joins)]), encoding="utf-8")
        (folder / _HOSTS).write_text("".join(f"{host}:1\n" for host in hosts), encoding="utf-8")
        discovery = folder / "discover.sh"
        discovery.write_text(f"#!/bin/sh\nexec cat '{folder / _HOSTS}'\n", encoding="utf-8")
        discovery.chmod(0o700)
        launcher = [sys.executable, "-m", "tfperf", "launch", "-np", str(len(hosts)), "--min-np", "1"]
        launcher += ["--max-np", str(len(hosts) + len(joins)), "--host-discovery-script", str(discovery)]
        with (folder / "output").open("w+", encoding="utf-8") as output:
            if failure := _run_to_end([*launcher, *command], folder, output, deadline):
                output.seek(0)
                last = " | ".join(output.read().splitlines()[-LAST_LINES:])
                raise TfperfError(f"the workers failed, {failure}: {last}")
        return _read(folder)


def _run_to_end(command: Sequence[str], folder: Path, output: Any, deadline: float) -> str:
    """Run a launcher, whose workers end with it, and end it with this function; in words why it failed, or ""."""
    environment = os.environ | {_FOLDER: str(folder), "TMPDIR": str(folder)}  # killed workers leave files behind
    with (
        handling(signal.SIGTERM, signal.default_int_handler),  # SIGTERM acts as Ctrl-C
        ChildProcess(
            command, folder=folder, environment=environment, stdout=output, stderr=STDOUT, grace=ENDING
        ) as process,
    ):
        try:
            code = process.wait(deadline)
        except TimeoutError:
            return f"not ended after {deadline:g} s"
    return f"exit code {code}" if code else ""


def _read(folder: Path) -> Rehearsal:
    """What the workers of a rehearsal left in their folder."""
    batches, deaths = [], {}
    for file in folder.glob("*.notes"):
        for line in file.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if "killed" in note:
                deaths[file.stem] = note["killed"]
            else:
                batches.append(TrainedBatch(file.stem, **note))
    results = folder / _RESULTS
    if not results.exists():
        raise TfperfError("expected rank 0 to call RehearsedWorker.hand_in at its end; it did not")
    handed_in: dict[str, list[NDArray[Any]]] = {}
    with np.load(results, allow_pickle=False) as arrays:
        for key in arrays.files:  # in the order in which they were written
            handed_in.setdefault(key.rpartition(" ")[0], []).append(arrays[key])
    return Rehearsal(tuple(sorted(batches, key=lambda batch: batch.end)), deaths, handed_in)
