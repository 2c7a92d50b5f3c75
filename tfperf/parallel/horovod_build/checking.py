"""The proof that Horovod works here: two ranks on this machine, one sum."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tfperf.errors import HorovodError

__all__ = ["RANKS", "Allreduce", "allreduce_on_two_ranks"]

RANKS = 2

DEADLINE_S = 120.0
"""Seconds that the two ranks may take, start of TensorFlow included; ten are usual."""

GRACE_S = 10.0
"""Seconds that the launcher has to end its ranks when the time is up, before it is killed."""


@dataclasses.dataclass(frozen=True)
class Allreduce:
    """What came back from the sum over two ranks, of 1 on the one and 2 on the other.

    Attributes:
        total: the value of every element.
        seconds: how long it took, one value for each rank.
    """

    total: float
    seconds: tuple[float, ...]


def allreduce_on_two_ranks(deadline_s: float = DEADLINE_S, *, mpi: bool = False) -> Allreduce:
    """Start two ranks with `tfperf launch`, which listen on loopback alone, and let them sum a tensor.

    Args:
        deadline_s: seconds that they may take.
        mpi: they do so through MPI and not through Gloo.

    Raises:
        HorovodError: they fail, take too long, or give a wrong sum.
    """
    with tempfile.TemporaryDirectory(prefix="tfperf-two-ranks-") as folder:
        result = Path(folder, "result.json")
        program = [sys.executable, "-m", "tfperf.parallel.horovod_build.two_ranks", str(result)]
        options = ["-np", str(RANKS), *(["--mpi"] if mpi else [])]
        command = [sys.executable, "-m", "tfperf", "launch", *options, "--", *program]
        _run(command, deadline_s)
        try:
            found = json.loads(result.read_text())
        except (OSError, ValueError) as error:
            raise HorovodError("the two ranks ended without an error and without a result") from error
    expected = float(sum(range(1, RANKS + 1)))
    if found["size"] != RANKS:
        raise HorovodError(f"expected {RANKS} ranks that know of each other, found a world of {found['size']}")
    if not found["least"] == found["greatest"] == expected:
        raise HorovodError(f"expected the sum {expected}, found {found['least']} to {found['greatest']}")
    return Allreduce(expected, tuple(found["seconds"]))


def _run(command: list[str], deadline_s: float) -> None:
    """Run the launcher to its end, within the deadline; nothing of it outlives this."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise HorovodError(f"the two ranks did not end within {deadline_s:g} s") from error
        finally:
            _end(process)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    if code != 0:
        errors = [line for line in lines if "Error" in line] or lines or [f"exit code {code}"]
        raise HorovodError(f"the two ranks failed: {errors[-1]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a launcher that still runs: asked first, so that it ends its ranks, which may have groups of their own."""
    if process.poll() is not None:
        return
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
