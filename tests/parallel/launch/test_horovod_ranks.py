"""Launches whose ranks are Horovod's: what listens, what happens to the others when one dies, and the threads."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="needs Horovod")
pytestmark = pytest.mark.timeout(600)

DEADLINE = 240
PROMISED = 15
"""Seconds in which all is gone after a rank was killed."""

ALLREDUCES = """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
for step in range(100_000):
    total = float(hvd.allreduce(tf.constant(float(rank)), op=hvd.Sum, name="x"))
    if step == 10:
        print("reduced", os.getpid(), total, flush=True)
    time.sleep(0.01)
"""

ELASTIC = """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
weight = tf.Variable(0.0)
state = hvd.elastic.TensorFlowState(variables=[weight], batch=0)

@hvd.elastic.run
def train(state):
    print("ranks", hvd.size(), "batch", state.batch, flush=True)
    while state.batch < 20:
        weight.assign_add(hvd.allreduce(tf.ones([]), name="x"))
        if state.batch == 10 and hvd.size() == 2:
            print("waiting", os.getpid(), os.environ["HOROVOD_HOSTNAME"], flush=True)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.05)
        state.batch += 1
        state.commit()
    print("trained", float(weight), flush=True)

train(state)
"""


def loopback_only(sockets):
    return all(address == "127.0.0.1" or address == "::1" for _, address in sockets)


def test_a_rank_killed_between_allreduces(launched, script):
    launch = launched("-np", 2, "python", script(ALLREDUCES))
    reduced = sorted(line for line in launch.read_until("reduced", times=2) if "reduced" in line)
    assert [line.split()[3] for line in reduced] == ["1.0", "1.0"]

    sockets = launch.sockets()
    assert launch.process.pid in {pid for pid, _ in sockets}  # the rendezvous server
    assert loopback_only(sockets), sockets
    assert launch.errors() == ""  # TensorFlow starts in silence

    victim = int(reduced[1].split()[2])
    os.kill(victim, signal.SIGKILL)
    assert launch.all_gone(PROMISED)
    assert launch.wait() == 137
    assert launch.errors().splitlines()[-1] == "tfperf launch: rank 1 was killed by SIGKILL; the other ranks were ended"


def test_one_of_two_hosts_killed_in_elastic_training(launched, script, tmp_path):
    discovery = tmp_path / "hosts.sh"
    discovery.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    discovery.chmod(0o755)
    go_on = tmp_path / "go on"
    elastic = ["--min-np", 1, "--host-discovery-script", discovery]
    launch = launched("-np", 2, *elastic, "python", script(ELASTIC), go_on)
    waiting = [line.split() for line in launch.read_until("waiting", times=2) if "waiting" in line]
    process_of = {host: int(pid) for _, _, pid, host in waiting}

    sockets = launch.sockets()
    assert {launch.process.pid, *process_of.values()} <= {pid for pid, _ in sockets}  # workers have a service each
    assert loopback_only(sockets), sockets

    os.kill(process_of["127.0.0.1"], signal.SIGKILL)
    go_on.write_text("")
    lines = launch.read_until("trained")
    assert any("ranks 1 batch 11" in line for line in lines)  # from the last commit on
    assert lines[-1].split()[-1] == "20.0"
    assert launch.wait() == 0
    assert "on 127.0.0.1[0] was killed by SIGKILL; 127.0.0.1 is left out from now on" in launch.errors()
    assert launch.all_gone(PROMISED)


def test_elastic_training_on_which_all_hosts_fail(launched, script):
    path = script("import time; sys.exit(3)\n")
    launch = launched("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1", "python", path)
    assert launch.wait() == 3
    last = launch.errors().splitlines()[-1]
    assert last.endswith("ended with exit code 3; too few hosts were left to go on")
    assert launch.all_gone(PROMISED)


def test_elastic_training_on_which_one_rank_finishes_and_another_one_fails(launched, script):
    launch = launched("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1", "python", script("sys.exit(3 * rank)"))
    assert launch.wait() == 3
    last = launch.errors().splitlines()[-1]
    assert re.search(r"rank 1 on \S+\[0\] ended with exit code 3; rank 0 on \S+\[0\] finished$", last)
    assert launch.all_gone(PROMISED)


def test_ctrl_c_in_elastic_training(launched, script):
    path = script("print('up', flush=True)\nsignal.pause()\n")
    launch = launched("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1", "python", path)
    launch.read_until("up", times=2)
    os.killpg(launch.process.pid, signal.SIGINT)
    assert launch.wait() == 130
    assert "Traceback" not in launch.errors()
    assert launch.all_gone(PROMISED)


THREADS = """
def names():
    return [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
import tensorflow as tf
before = names()
tf.linalg.matmul(tf.ones([512, 512]), tf.ones([512, 512])).numpy()
after = names()
print("threads", after.count("tf_Compute"), len(after) - len(before) - after.count("tf_Compute"), flush=True)
"""


def test_ranks_use_no_more_threads_than_asked(launched, script):
    """TensorFlow's pools: between operations, named tf_Compute, and within them, with one thread more for graphs."""
    launch = launched("-np", 1, "--threads", 3, "python", script(THREADS))
    line = launch.read_until("threads")[-1]
    between, within = (int(word) for word in line.split()[-2:])
    assert between == 3
    assert within == 3 + 1
    assert launch.wait() == 0


def test_plain_horovodrun_works_as_well(tmp_path):
    horovodrun = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    (tmp_path / "rank.py").write_text("import os; print('rank', os.environ['HOROVOD_RANK'])")
    command = [horovodrun, "--gloo", "-np", "2", sys.executable, str(tmp_path / "rank.py")]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        output = process.communicate(timeout=DEADLINE)[0]
    finally:
        process.kill()  # its middlemen see that and end
    assert process.returncode == 0
    assert sorted(output.splitlines()) == ["[0]<stdout>:rank 0", "[1]<stdout>:rank 1"]


IDLE = 8
"""Seconds for which a rank may do nothing while another one waits for it, in the launches below."""

BRIEF = f"""
from tfperf.parallel.launch import job
assert job.IDLE_LIMIT == 20  # as docs/horovod.md says
job.IDLE_LIMIT = {IDLE}
from tfperf.cli import main
main()
"""
"""`tfperf`, which waits less long for such a rank."""


def test_a_rank_that_never_comes_is_named(launched, script):
    never = "if rank == 1: time.sleep(600)\nimport horovod.tensorflow as hvd\nhvd.init()\n"
    launch = launched("-np", 2, "python", script(never), tfperf=("-c", BRIEF))
    assert launch.wait() == 1
    words = f"rank 1 has not come to hvd.init(), and has done nothing for {IDLE} s; rank 0 waited for it"
    assert launch.errors().splitlines()[-1] == f"tfperf launch: {words}; all ranks were ended"
    assert launch.all_gone(PROMISED)


def test_a_rank_that_comes_late_is_waited_for_where_that_was_asked_for(launched, script):
    """It comes after twice the seconds that ended the launch above; the other rank waits for most of them."""
    late = f"if rank == 1: time.sleep({2 * IDLE})\nimport horovod.tensorflow as hvd\nhvd.init()\nprint(hvd.size())\n"
    launch = launched("-np", 2, "--start-timeout", 120, "python", script(late), tfperf=("-c", BRIEF))
    assert launch.wait() == 0
