"""The recipe mnist_spark and its local Spark: what it refuses, where it listens, and that all of it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.fixtures.marked import MARK, end_marked, marked
from tfperf.errors import TfperfError
from tfperf.parallel.spark import check_requirements

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
        return marked(mark)

    def start(*command, **variables):
        environment = os.environ | {MARK: mark, "TF_CPP_MIN_LOG_LEVEL": "3"} | variables
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
        end_marked(mark)


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


# Where it listens

SERVERS = """
import psutil
from tfperf.parallel.spark.executor_daemon import listen_on_loopback_only
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
