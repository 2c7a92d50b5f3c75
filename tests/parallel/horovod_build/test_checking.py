"""The two ranks: when the launcher fails, hangs, or lies. That it works is tested with the command."""

import sys
import time

import psutil
import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.checking import Allreduce, allreduce_on_two_ranks

GOOD = '{"size": 2, "least": 3.0, "greatest": 3.0, "seconds": [0.01, 0.02]}'


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A function that makes `sys.executable -m tfperf launch` a shell script; $result is the file it has to write."""

    def make(body):
        stub = tmp_path / "python"
        stub.write_text(f"#!/bin/sh\nfor result; do :; done\n{body}\n")
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))

    return make


def test_the_sum_and_the_times_come_back(launcher):
    launcher(f"echo '{GOOD}' > $result")
    assert allreduce_on_two_ranks() == Allreduce(3.0, (0.01, 0.02))


@pytest.mark.parametrize(("mpi", "times"), [(False, 0), (True, 1)])
def test_the_launcher_is_told_to_use_mpi_when_asked(launcher, tmp_path, mpi, times):
    launcher(f"echo \"$@\" > {tmp_path}/arguments; echo '{GOOD}' > $result")
    allreduce_on_two_ranks(mpi=mpi)
    launched, _ = (tmp_path / "arguments").read_text().split(" -- ")
    assert launched.split().count("--mpi") == times


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo; echo 'ImportError: no such thing'; echo 'rank 0 ended with 1'; exit 1", "failed: ImportError: no such"),
        ("echo 'rank 0 ended with 1' >&2; exit 1", "the two ranks failed: rank 0 ended with 1"),
        ("exit 3", "the two ranks failed: exit code 3"),
        ("exit 0", "without an error and without a result"),
        ("echo half > $result", "without an error and without a result"),
        (f"echo '{GOOD.replace('2,', '1,')}' > $result", "expected 2 ranks .* found a world of 1"),
        (f"echo '{GOOD.replace('3.0', '2.0', 1)}' > $result", "expected the sum 3.0, found 2.0 to 3.0"),
        (f"echo '{GOOD.replace('3.0', '1.0')}' > $result", "expected the sum 3.0, found 1.0 to 1.0"),
    ],
)
def test_what_goes_wrong_is_one_line(launcher, body, words):
    launcher(body)
    with pytest.raises(HorovodError, match=words):
        allreduce_on_two_ranks()


def test_ranks_that_hang_are_ended(launcher, tmp_path):
    launcher(f"trap '' TERM\nsleep 600 &\necho $$ $! > {tmp_path}/numbers\nwait\nwait")
    with pytest.raises(HorovodError, match="did not end within 1 s"):
        allreduce_on_two_ranks(deadline_s=1.0)
    numbers = [int(word) for word in (tmp_path / "numbers").read_text().split()]
    patience = time.monotonic() + 20
    while any(psutil.pid_exists(number) and _runs(number) for number in numbers):
        assert time.monotonic() < patience, f"one of {numbers} still runs"
        time.sleep(0.05)


def _runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
