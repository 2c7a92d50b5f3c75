"""What each rank does around its checks; `test_two_ranks.py` launches the ranks and reads what they write.

A check runs on every rank at once. After it the ranks wait for one another, so that none is ahead of another. They do
so by files: Horovod pairs eager exchanges by their order alone, so that one rank's last word could meet another
rank's gradient. Where a rank left a check early and another one waits for it inside, it shuts Horovod down, which
fails what the other one waits for; then both start it again for the checks that are left.
"""

import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.untuned import leave_out_tuner

RESULTS = Path(os.environ["CHECK_RESULTS"])
RANK = int(os.environ["HOROVOD_RANK"])
RANKS = range(int(os.environ["HOROVOD_SIZE"]))
PATIENCE = float(os.environ.get("CHECK_PATIENCE", "60"))
"""Seconds for which a rank that has ended a check waits for the others."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write each outcome as it comes: what a rank did before it hung is known then."""
    entry = {"check": report.nodeid.split("::")[-1], "when": report.when, "outcome": report.outcome}
    text = "" if report.passed else report.longreprtext
    with (RESULTS / f"rank{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(entry | {"seconds": report.duration, "text": text}) + "\n")


@pytest.fixture(scope="session", autouse=True)
def _horovod() -> Iterator[None]:
    import tfperf.parallel.horovod as hvd

    hvd.init()
    leave_out_tuner()
    gc.collect()
    gc.freeze()  # what was imported stays: a collection that looks at all of it again takes half a second
    yield
    hvd.shutdown()


def all_are(where: str, patience: float) -> bool:
    """Say that this rank is somewhere, and wait until all are, or patience ends; whether all are."""
    (RESULTS / f"{where}.{RANK}").touch()
    deadline = time.monotonic() + patience
    while not all((RESULTS / f"{where}.{rank}").exists() for rank in RANKS):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def end_together(check: str) -> None:
    """Leave a check together with the other ranks; start Horovod again where one of them was stuck in it."""
    import tfperf.parallel.horovod as hvd

    parted = RESULTS / f"{check}.parted"
    if not all_are(f"{check}.ended", PATIENCE):
        parted.touch()
        hvd.shutdown()
    if not parted.exists():
        return
    hvd.shutdown()
    if not all_are(f"{check}.again", 60):
        pytest.exit(f"the other rank does not come out of {check}", returncode=1)
    hvd.init()
    pytest.fail(f"the ranks parted: one waited {PATIENCE:g} s for the other", pytrace=False)


@pytest.fixture(autouse=True)
def _together(request: pytest.FixtureRequest, _horovod: None) -> Iterator[None]:
    """Start each check afresh, with another seed on each rank, and end it on all ranks together."""
    import keras

    from tfperf.parallel.horovod import stalls

    del stalls._all_exchanges[1:]  # of checks that have ended; each would be looked at for ever
    keras.utils.clear_session(free_memory=False)  # memory is freed now and then, not before each check
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(100 + RANK)
    yield
    keras.config.set_dtype_policy("float32")
    end_together(request.node.name)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    """A folder, the same on all ranks, for one check."""
    folder = RESULTS / f"folder of {request.node.name}"
    folder.mkdir(exist_ok=True)
    return folder
