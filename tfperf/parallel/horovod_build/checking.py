"""The proof that Horovod works here: two ranks on this machine, one sum."""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.processes import run

__all__ = ["RANKS", "Allreduce", "allreduce_on_two_ranks"]

RANKS = 2

DEADLINE_S = 120.0
"""Seconds that the two ranks may take, start of TensorFlow included; ten are usual."""


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
            found = json.loads(result.read_text(encoding="utf-8"))
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
    try:
        done = run(command, deadline=deadline_s, merged=True, environment={"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ)
    except TimeoutError as error:
        raise HorovodError(f"the two ranks did not end within {deadline_s:g} s") from error
    if done.code != 0:
        lines = [line.strip() for line in done.output.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line] or lines or [f"exit code {done.code}"]
        raise HorovodError(f"the two ranks failed: {errors[-1]}")
