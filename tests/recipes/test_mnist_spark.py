"""The recipe mnist_spark and its local Spark: what it refuses, where it listens, and that all of it ends."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel.spark import Notes, Training, check_requirements, is_private, requirements, set_weights

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "mnist_spark.py"
DEADLINE = 500
"""Seconds after which a process is killed; it means a hang, not a speed."""


def what_is_missing():
    try:
        check_requirements()
    except TfperfError as error:
        return str(error)
    return ""


needs_spark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())


@contextlib.contextmanager
def programs(folder):
    """Functions that start a program in a folder, and list it with all that it started; none outlives the block."""
    mark = uuid.uuid4().hex

    def everything():
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("STARTED_BY_TEST") == mark:
                    found.append(process)
        return found

    def start(*command, **variables):
        environment = os.environ | {"STARTED_BY_TEST": mark, "TF_CPP_MIN_LOG_LEVEL": "3"} | variables
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    try:
        yield start, everything
    finally:
        for process in everything():
            with contextlib.suppress(psutil.Error):
                process.kill()


@pytest.fixture
def started(tmp_path):
    """What `programs` gives, in the test's own folder."""
    with programs(tmp_path) as functions:
        yield functions


def run(started, *command, **variables):
    """Run a program to its end; its exit code, standard output and standard error."""
    start, _ = started
    process = start(*command, **variables)
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out, err


def wait_for(condition, what):
    """The first true value of `condition()`, looked at until the deadline."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)  # between two looks
    raise AssertionError(f"{what} did not come about in {DEADLINE} s")


# What it needs


@pytest.fixture
def java_that_says(tmp_path, monkeypatch):
    """A function that makes the only Java there is one that says so."""

    def java_that_says(words):
        java = tmp_path / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        # Written by a process of its own: children that another thread of this one starts would hold the file open,
        # and what is open for writing cannot be run
        write = ["sh", "-c", 'cat > "$0" && chmod 755 "$0"', str(java)]
        subprocess.run(write, input=f"#!/bin/sh\necho '{words}' >&2\n", text=True, check=True, timeout=60)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    return java_that_says


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
    ],
)
def test_java_says_its_version(java_that_says, words, version):
    java_that_says(words)
    assert requirements.java_version() == version


def test_java_that_says_nothing_is_an_error(java_that_says):
    java_that_says("hello")
    with pytest.raises(TfperfError, match="does not say its version"):
        requirements.java_version()


def test_java_home_comes_before_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert requirements.java_version() is None


def test_an_old_java_is_refused(java_that_says):
    java_that_says('java version "11.0.2"')
    with pytest.raises(TfperfError, match=r"Java 17 or newer for Spark, found Java 11; install a JDK"):
        check_requirements()


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("pyspark", r"tfperf\[spark\]"), ("tensorflowonspark", r"tfperf\[spark\]"), ("horovod", "tfperf horovod install")],
)
def test_a_missing_module_is_one_line_with_its_remedy(monkeypatch, module, remedy):
    monkeypatch.setattr(requirements, "java_version", lambda: 17)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name == module else name)
    with pytest.raises(TfperfError, match=rf"module {module} .*{remedy}") as caught:
        check_requirements()
    assert "\n" not in str(caught.value)


def test_without_java_the_recipe_says_so_in_one_line(started, tmp_path):
    code, out, err = run(started, RECIPE, "--quick", JAVA_HOME="", PATH="/nonexistent")
    assert code == 2
    (line,) = [line for line in err.splitlines() if "mnist_spark" in line]
    assert "expected Java 17 or newer for Spark, found none; install a JDK" in line
    assert "Traceback" not in err
    assert "Data:" not in out
    assert not list(tmp_path.iterdir())


@needs_spark
@pytest.mark.parametrize("arguments", [["--batch", "3"], ["--batch", "100000"]])
def test_it_refuses_a_batch_that_it_cannot_share_out(started, tmp_path, arguments):
    code, _, err = run(started, RECIPE, *arguments)
    assert code == 2
    assert f"Received: --batch {arguments[1]}" in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.json"))


# What ranks bring home


class Net:
    """A net of two weights that add up the steps."""

    def __init__(self):
        self.arrays = [np.zeros((2, 3)), np.zeros(())]

    def get_weights(self):
        return self.arrays

    def set_weights(self, arrays):
        self.arrays = arrays


def test_notes_keep_the_weights_after_the_early_steps_and_at_the_end():
    net = Net()
    notes = Notes(net, early=2)
    for step in range(1, 4):
        net.arrays = [np.full((2, 3), float(step)), np.array(-float(step))]
        notes.step()
    ends, early, final = notes.all()
    assert ends.shape == (3,)
    assert early.tolist() == [2.0] * 6 + [-2.0]
    assert final.tolist() == [3.0] * 6 + [-3.0]
    other = Net()
    set_weights(other, final)
    assert all(map(np.array_equal, other.arrays, net.arrays))


def test_a_training_is_split_at_its_first_and_its_last_step(monkeypatch):
    monkeypatch.setattr("tfperf.parallel.spark.notes.time.time", lambda: 120.0)
    ends = np.array([110.0, 110.5, 111.0, 115.0])  # the last step was slow; the median is not
    ranks = [(ends, np.zeros(2), np.ones(2)), (ends + 1, np.zeros(2), np.zeros(2))]
    training = Training.ended_now(100.0, ranks)
    assert training.seconds == {"up to the first step": 10.0, "training": 5.0, "after the last step": 5.0}
    assert training.steps_per_second == 2.0
    assert [weights.tolist() for weights in training.final] == [[1.0, 1.0], [0.0, 0.0]]


# Where it listens

SERVERS = """
import psutil
from tfperf.parallel.spark.loopback import listen_on_loopback_only
listen_on_loopback_only()
from horovod.runner.common.util import network, secret
from horovod.runner.http.http_server import RendezvousServer
from tensorflowonspark import reservation, util
service = network.BasicService("service", secret.make_secret_key(), None)
RendezvousServer().start()
server = reservation.Server(1)
print(server.start()[0], util.get_ip_address())
reservation.Client(server.start()).close()
print(*{c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"})
"""


@needs_spark
def test_services_of_horovod_and_tensorflow_on_spark_listen_on_loopback(started):
    code, out, err = run(started, "-c", SERVERS)
    assert code == 0, err
    assert out.splitlines() == ["127.0.0.1 127.0.0.1", "127.0.0.1"]


PRIVATE = """
import os, socket, sys
from tfperf.parallel.spark import enter_private_network, is_private
print("started", flush=True)
enter_private_network()
everywhere = socket.create_server(("0.0.0.0", 0))
mine = socket.create_connection(("127.0.0.1", everywhere.getsockname()[1]))
print(is_private(), os.getpid(), os.getuid(), sys.argv[1], everywhere.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(is_private() or not shutil.which("unshare"), reason="no network to leave, or no unshare to ask")
def test_in_a_private_network_nobody_reaches_a_server_that_listens_everywhere(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PRIVATE)
    process = subprocess.Popen(
        [sys.executable, str(program), "a flag"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        private, pid, user, *flag, port = lines[2].split()
        assert lines[:2] == ["started\n"] * 2, "the program ran from its beginning, twice"
        assert (int(pid), int(user), flag) == (process.pid, os.getuid(), ["a", "flag"])
        if subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True).returncode:
            pytest.skip("this kernel or container allows no network namespace")
        assert private == "True"
        assert not can_connect(port)
        assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    finally:
        process.stdin.close()
        process.wait(DEADLINE)
        process.stdout.close()


def can_connect(port):
    """Whether anybody listens there, seen from this process."""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            return True
    except OSError:
        return False


# Spark itself

JOBS = """
import os, sys, time
import horovod.spark
from tensorflowonspark import TFCluster
from tfperf.errors import TfperfError
from tfperf.parallel.spark import SparkCluster

def listeners(driver, home):
    import psutil
    def kind(process):
        command = " ".join(process.cmdline())
        names = {"java": "java", "executor_daemon": "daemon", "gloo_exec_fn": "rank"}
        return next((name for part, name in names.items() if part in command), "other")
    ours = {driver: "driver"}
    for process in psutil.process_iter():
        try:
            if process.environ().get("SPARK_HOME") == home:
                ours[process.pid] = kind(process)
        except psutil.Error:
            pass
    return [(ours[c.pid], c.laddr.ip) for c in psutil.net_connections() if c.status == "LISTEN" and c.pid in ours]

def fail_as_rank():
    raise ValueError("the third image is upside down")

def sleep(_):
    time.sleep(900)

def fail_as_node(arguments, context):
    raise ValueError("the fourth image is upside down")

def failure(cluster, what, deadline, job):
    try:
        with cluster.job(what, deadline):
            job()
    except TfperfError as error:
        return error

with SparkCluster(2) as cluster:
    print(os.environ["SPARK_HOME"])
    options = {"num_proc": 2, "nics": {"lo"}, "use_gloo": True, "verbose": 0}
    with cluster.job("listening", 200):
        found, _ = horovod.spark.run(listeners, (os.getpid(), os.environ["SPARK_HOME"]), **options)
    print(*sorted({kind for kind, _ in found}))
    print(*sorted({ip.removeprefix("::ffff:") for _, ip in found}))
    print(failure(cluster, "Horovod on Spark", 200, lambda: horovod.spark.run(fail_as_rank, **options)))
try:
    with SparkCluster(2) as cluster:
        print(os.environ["SPARK_HOME"])
        print(failure(cluster, "sleeping", 1, lambda: cluster.context.range(2, numSlices=2).foreach(sleep)))
        with cluster.job("TensorFlowOnSpark", 200):
            TFCluster.run(cluster.context, fail_as_node, (), 2, num_ps=0, master_node="chief").shutdown(timeout=-1)
except TfperfError as error:
    print(error)
print("SPARK_HOME" in os.environ)
"""
"""Two clusters, each of which takes seconds to start: one that ends in order, and one that ends by an error."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What the jobs above print, line by line, and which processes they leave."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "jobs.py").write_text(JOBS)
    with programs(folder) as functions:
        code, out, err = run(functions, "jobs.py")
        _, everything = functions
        left = everything()
    assert code == 0, err[-2000:]
    names = ("home", "kinds", "addresses", "rank failed", "other home", "hung", "node failed", "home is told")
    return dict(zip(names, out.splitlines(), strict=True)), left


@needs_spark
@pytest.mark.timeout(DEADLINE + 20)  # the first of these has all of them
def test_spark_and_horovod_listen_on_loopback(jobs):
    said, _ = jobs
    assert {"driver", "java", "daemon"} <= set(said["kinds"].split())
    assert said["addresses"] == "127.0.0.1"


@needs_spark
@pytest.mark.timeout(DEADLINE + 20)
def test_a_rank_and_a_node_that_fail_are_one_line(jobs):
    said, _ = jobs
    assert said["rank failed"] == "Horovod on Spark failed: ValueError: the third image is upside down"
    assert said["node failed"] == "TensorFlowOnSpark failed: ValueError: the fourth image is upside down"


@needs_spark
@pytest.mark.timeout(DEADLINE + 20)
def test_a_job_that_hangs_is_cancelled(jobs):
    said, _ = jobs
    assert said["hung"] == "sleeping was not done after 1 s and was cancelled"


@needs_spark
@pytest.mark.timeout(DEADLINE + 20)
def test_nothing_is_left_of_spark(jobs):
    said, left = jobs
    assert not left
    assert said["home"] != said["other home"]
    assert not Path(said["home"]).exists()
    assert not Path(said["other home"]).exists()
    assert said["home is told"] == "False"


@needs_spark
@pytest.mark.timeout(2 * DEADLINE)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_recipe_ends_with_all_of_spark_when_interrupted_while_ranks_train(started, tmp_path, number):
    start, everything = started
    process = start(RECIPE, "--quick", "--time-limit", "0.2")

    def ranks():
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(psutil.Error):
            return [found for found in everything() if "horovod.spark.task.gloo_exec_fn" in found.cmdline()]

    for rank in wait_for(ranks, "ranks"):
        with contextlib.suppress(psutil.Error):
            home = Path(rank.environ()["SPARK_HOME"])
    os.killpg(process.pid, number)  # as a terminal does
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mnist_spark: interrupted; nothing was written"
    assert not everything()
    assert not home.exists()
    assert not list(tmp_path.iterdir())
