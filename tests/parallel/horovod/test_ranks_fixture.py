"""The frame itself: a launch reports each rank, and ends with everything it started."""

import uuid
from pathlib import Path

import psutil
import pytest

from tests.fixtures.marked import marked

ROOT = Path(__file__).parents[3]

BOTH = """
    import os
    report(rank=int(os.environ["HOROVOD_RANK"]), size=int(os.environ["HOROVOD_SIZE"]), cookie=os.environ["COOKIE"])
"""
HANGS_ON_RANK_1 = """
    import os, signal, subprocess, sys, time
    report(rank=int(os.environ["HOROVOD_RANK"]))
    if os.environ["HOROVOD_RANK"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        time.sleep(600)
"""
LEAVES_A_CHILD = """
    import subprocess, sys
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    report(child=child.pid)
"""

LISTENERS = """
    import os, psutil
    import horovod.tensorflow as hvd
    from tests.fixtures.marked import listening, marked

    hvd.init()
    sockets = listening([psutil.Process(), *marked(os.environ["COOKIE"], "COOKIE")])
    hvd.allgather_object(None)  # none ends before the other one has looked
    report(addresses=sorted({address for _, address in sockets}))
"""


@pytest.fixture
def cookie():
    return uuid.uuid4().hex


def test_every_rank_reports(ranks, cookie) -> None:
    launched = ranks(BOTH, env={"COOKIE": cookie}, deadline=60)
    assert launched.of_each_rank() == tuple({"rank": rank, "size": 2, "cookie": cookie} for rank in range(2))


def test_a_rank_that_hangs_is_ended_with_all_it_started(ranks, cookie) -> None:
    for deadline in (8, 30, 90):  # a busy machine may take longer until a rank hangs
        launched = ranks(HANGS_ON_RANK_1, env={"COOKIE": cookie}, deadline=deadline)
        if None not in launched.results:
            break
    assert launched.returncode is None
    assert launched.results == ({"rank": 0}, {"rank": 1})
    assert marked(cookie, "COOKIE") == []
    with pytest.raises(AssertionError, match="exit code None"):
        launched.of_each_rank()


def test_a_child_left_behind_is_ended(ranks, cookie, within_seconds) -> None:
    children = [result["child"] for result in ranks(LEAVES_A_CHILD, env={"COOKIE": cookie}, deadline=60).of_each_rank()]
    assert marked(cookie, "COOKIE") == []
    assert len(children) == 2
    assert within_seconds(lambda: not any(map(psutil.pid_exists, children)))  # until somebody has waited for them


def test_all_listen_on_loopback(ranks, cookie) -> None:
    """The launcher, and Horovod's own connections between the ranks."""
    results = ranks(LISTENERS, env={"COOKIE": cookie, "PYTHONPATH": str(ROOT)}, deadline=90).of_each_rank()
    assert [result["addresses"] for result in results] == [["127.0.0.1"]] * 2


def test_a_rank_that_fails_fails_the_launch(ranks) -> None:
    launched = ranks("import os, sys\nsys.exit(os.environ['HOROVOD_RANK'] == '1')", deadline=60)
    assert launched.returncode not in (0, None)
    assert launched.results == (None, None)
    with pytest.raises(AssertionError, match="exit code"):
        launched.of_each_rank()
