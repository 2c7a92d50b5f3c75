"""Local clusters of TensorFlow servers: they work, errors name the server, and no process stays.

What needs no TensorFlow is tested with servers that are processes only.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import cloudpickle
import psutil
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel import LocalCluster, cluster, in_private_network, run_on_workers
from tfperf.processes import workers

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the processes cannot import it

DEADLINE = 60

PROGRAM = """
    import time
    from tfperf.parallel import LocalCluster, cluster

    cluster.is_private = lambda: True
    cluster._load_tensorflow = lambda: None
    cluster._start_server = lambda *_: None
    if __name__ == "__main__":
        with LocalCluster(1, 1):
            print("ready", flush=True)
            while True:  # Python misses a signal that comes just before it begins to sleep
                time.sleep(0.1)
"""


@pytest.fixture
def empty_servers(monkeypatch):
    """Servers are processes that do nothing; the network does not matter then."""
    monkeypatch.setattr(cluster, "is_private", lambda: True)
    for name in ("_load_tensorflow", "_start_server", "_become_worker", "_give_up_recovery"):
        monkeypatch.setattr(cluster, name, lambda *_: None)


STRANGERS = set()
"""Numbers of processes older than this file's tests; servers are sent this module, so numbers alone can be kept."""


@pytest.fixture(autouse=True, scope="module")
def _strangers():
    STRANGERS.update(child.pid for child in children())


def children():
    """Processes of this file's tests that live."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends meanwhile
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return [child for child in found if child.pid not in STRANGERS]


def server_processes():
    """Those of a cluster's servers, in their order."""
    return [child for child in children() if "spawn_main" in " ".join(child.cmdline())]


# TensorFlow's own servers


def train_until_a_worker_is_killed():
    """Use a cluster, then kill a worker and go on: the coordinator waits for it for ever."""
    import tensorflow as tf

    found = {}
    try:
        with LocalCluster(workers=1, parameter_servers=1) as servers:
            strategy = tf.distribute.ParameterServerStrategy(servers.resolver)
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            with strategy.scope():
                total = tf.Variable(0.0)
            step = tf.function(lambda: total.assign_add(1.0))
            for _ in range(5):
                coordinator.schedule(step)
            coordinator.join()
            found |= {"total": float(total), "device": total.device, "addresses": servers.addresses}
            found["held"] = servers.bytes_held({"total": [total], "of this process": tf.Variable([1.0, 2.0])})
            worker = server_processes()[0]
            found["listens"] = [c.laddr.ip for c in worker.net_connections() if c.status == psutil.CONN_LISTEN]
            worker.kill()
            found["killed"] = time.monotonic()
            while True:
                coordinator.schedule(step)
                coordinator.join()
    except TfperfError as error:
        return found | {"error": str(error), "seconds": time.monotonic() - found["killed"], "left": len(children())}


@pytest.fixture(scope="module")
def trained():
    return in_private_network(train_until_a_worker_is_killed)


def test_a_parameter_server_holds_what_workers_change(trained):
    assert trained["total"] == 5
    assert trained["device"].startswith("/job:ps/replica:0/task:0")
    assert trained["held"] == [4], "one float32, and nothing of what is elsewhere"


def test_a_tensorflow_server_listens_on_all_interfaces_so_it_needs_a_private_network(trained):
    assert trained["addresses"]["worker"][0].startswith("127.0.0.1:")
    assert trained["listens"] == ["::"]


def test_a_worker_that_is_killed_ends_a_coordinator_that_waits_for_it(trained):
    wanted = "expected TensorFlow servers to work to the end; worker 0 at {} has ended, killed by SIGKILL"
    assert trained["error"] == wanted.format(trained["addresses"]["worker"][0])
    assert trained["seconds"] < 30
    assert trained["left"] == 0


def test_workers_of_one_job_sum_up_what_each_has():
    def add(share):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        context = tf.distribute.get_replica_context
        index = strategy.cluster_resolver.task_id
        total = tf.function(lambda: strategy.run(lambda: context().all_reduce("sum", tf.constant(share * (index + 1)))))
        return index, float(total())

    assert in_private_network(run_on_workers, add, 10.0, workers=2) == [(0, 30.0), (1, 30.0)]


def test_a_port_that_is_taken_names_the_server(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(cluster, "is_private", lambda: True)  # no server will listen
        monkeypatch.setattr(cluster, "_free_addresses", lambda _: {"worker": [address], "ps": []})
        with pytest.raises(TfperfError, match=rf"has failed in worker 0 at {address}: UnknownError: Could not start"):
            LocalCluster(workers=1, parameter_servers=0).__enter__()
    assert not children()


# Processes alone


def test_a_network_that_others_see_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "is_private", lambda: False)
    for start in (LocalCluster().__enter__, lambda: run_on_workers(print)):
        with pytest.raises(TfperfError, match=r"use in_private_network, or a container started with --network none$"):
            start()
    assert not children()


@pytest.mark.parametrize("numbers", [(0, 1), (1, -1)])
def test_impossible_numbers_are_refused(numbers):
    with pytest.raises(TfperfError, match=r"at least 1 worker .* Received: workers=\d, parameter_servers="):
        LocalCluster(*numbers)


def test_a_bandwidth_without_parameter_servers_is_refused():
    words = r"^expected parameter servers for a bandwidth of 1e\+06 bytes/s\. Received: none$"
    with pytest.raises(TfperfError, match=words):
        LocalCluster(2, 0, bandwidth=1e6)


def test_addresses_are_of_loopback_and_none_is_there_twice(empty_servers):
    with LocalCluster(3, 2) as servers:
        assert {job: len(addresses) for job, addresses in servers.addresses.items()} == {
            "worker": 3,
            "ps": 2,
            "chief": 1,
        }
        addresses = [*servers.addresses["worker"], *servers.addresses["ps"]]
        assert len(set(addresses)) == len(server_processes()) == 5
        assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert not children()


def test_a_server_that_never_comes_is_named(empty_servers, monkeypatch):
    monkeypatch.setattr(cluster, "_start_server", lambda _, job, __: time.sleep(600 * (job == "ps")))
    with pytest.raises(TfperfError, match=r"within 0\.3 s; at work still: ps 0 at 127\.0\.0\.1:\d+$"):
        LocalCluster(1, 1, start_deadline=0.3).__enter__()
    assert not children()


def test_a_server_that_ends_at_its_start_is_named(empty_servers, monkeypatch):
    monkeypatch.setattr(cluster, "_start_server", lambda _, job, index: os._exit(7) if (job, index) == ("ps", 1) else 0)
    with pytest.raises(TfperfError, match=r"ps 1 at 127\.0\.0\.1:\d+ has ended, with exit code 7$"):
        LocalCluster(1, 2).__enter__()
    assert not children()


@pytest.mark.parametrize(
    ("done_to_it", "words"), [("kill", "has ended, killed by SIGKILL"), ("suspend", "is stopped, for 1 s")]
)
def test_a_server_that_is_killed_or_stopped_ends_a_block_that_waits(empty_servers, monkeypatch, done_to_it, words):
    monkeypatch.setattr(workers, "IDLE_LIMIT", 1.0)

    def wait():
        with LocalCluster(1, 1):
            getattr(server_processes()[1], done_to_it)()
            time.sleep(600)

    with pytest.raises(TfperfError, match=rf"ps 0 at 127\.0\.0\.1:\d+ {words}$"):
        wait()
    assert not children()


def test_a_server_that_hangs_while_it_loads_is_named(empty_servers, monkeypatch):
    monkeypatch.setattr(cluster, "_load_tensorflow", lambda: time.sleep(600))
    monkeypatch.setattr(cluster, "IDLE_LIMIT", 1.0)
    with pytest.raises(TfperfError, match=r"worker 0 at 127\.0\.0\.1:\d+ has done nothing for 1 s$"):
        LocalCluster(1, 1).__enter__()
    assert not children()


def test_an_error_that_follows_from_a_servers_end_gives_its_name(empty_servers):
    def fail():
        with LocalCluster(1, 1):
            server_processes()[0].kill()
            raise ConnectionError("socket closed")

    with pytest.raises(TfperfError, match=r"worker 0 at 127\.0\.0\.1:\d+ has ended, killed by SIGKILL$") as raised:
        fail()
    assert isinstance(raised.value.__context__, ConnectionError)
    assert not children()


def test_an_error_of_the_block_stays_itself(empty_servers):
    def fail():
        with LocalCluster(1, 1):
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        fail()
    assert not children()


def it_is_ended_in_time():
    """A block that takes too long."""

    def wait():
        with LocalCluster(1, 1, deadline=0.3):
            time.sleep(600)

    with pytest.raises(TfperfError, match=r"the work on them has not ended within 0\.3 s$"):
        wait()
    assert not children()


def test_a_block_that_takes_too_long_is_ended(empty_servers):
    it_is_ended_in_time()


def test_a_block_that_begins_to_wait_just_after_the_signal_is_ended(empty_servers, monkeypatch):
    """Python misses such a signal: the first one is left out here."""
    sent = []

    def miss_the_first(thread, number, kill=signal.pthread_kill):
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", miss_the_first)

    it_is_ended_in_time()
    assert len(sent) == 2


def test_signals_are_handled_as_before_afterwards(empty_servers):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with LocalCluster(1, 1):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_a_worker_that_fails_or_ends_is_named_and_ends_all(empty_servers, monkeypatch):
    monkeypatch.setattr(cluster, "_become_worker", lambda _, index: os.environ.update(OWN_INDEX=str(index)))

    def work(how):
        if os.environ["OWN_INDEX"] == "0":
            time.sleep(600)
        if how == "raise":
            raise ValueError("a bad step")
        os._exit(3)

    with pytest.raises(TfperfError, match=r"^work has failed in worker 1 at 127\.0\.0\.1:\d+: ValueError: a bad step$"):
        run_on_workers(work, "raise")
    with pytest.raises(TfperfError, match=r"worker 1 at 127\.0\.0\.1:\d+ has ended, with exit code 3$"):
        run_on_workers(work, "end")
    assert not children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_their_program(tmp_path, number):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    everybody = []
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            everybody = psutil.Process(process.pid).children(recursive=True)
            assert len([one for one in everybody if "spawn_main" in " ".join(one.cmdline())]) == 2
            process.send_signal(number)
            process.communicate(timeout=DEADLINE)
            _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
            assert not alive
        finally:
            for member in everybody:
                if member.is_running():
                    member.kill()
            process.kill()
