"""Ranks that exchange through MPI: the process manager, spoken to as MPICH does, and what a launch refuses."""

import contextlib
import dataclasses
import http.client
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("horovod", reason="needs Horovod")

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import find_horovod
from tfperf.parallel.launch import Job, launch, parse_hosts, rendezvous, static
from tfperf.parallel.launch.environment import START_TIMEOUT, START_VARIABLE
from tfperf.parallel.launch.rendezvous import ProcessManager, Rendezvous

DEADLINE = 60

room = sys.modules["tfperf.parallel.launch.job"]


class Rank:
    """A rank's connection to its process manager."""

    def __init__(self, manager, rank):
        variables = manager.variables(rank)
        host, port = variables["PMI_PORT"].split(":")
        assert host == "127.0.0.1"
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE)
        self._lines = self._socket.makefile("rw", newline="\n")
        self.say(f"cmd=initack pmiid={variables['PMI_ID']}")
        self.told = [self.hear() for _ in range(4)]

    def say(self, line):
        self._lines.write(f"{line}\n")
        self._lines.flush()

    def hear(self):
        return self._lines.readline().strip()

    def ask(self, line):
        self.say(line)
        return self.hear()

    def close(self):
        self._lines.close()
        self._socket.close()


def test_no_address_outlives_a_rendezvous_in_which_one_rank_is_late():
    """Horovod's own server keeps them: a rank that is alone between hosts is done before the other is on its host."""
    here = {"hostname": "here", "size": 2, "local_size": 2, "cross_size": 1}
    with Rendezvous("127.0.0.1") as rendezvous:
        port = rendezvous.start()
        rendezvous.init([SimpleNamespace(**here, local_rank=rank) for rank in range(2)])

        def ask(method, path):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
                connection.request(method, path, body=b"an address" if method == "PUT" else None)
                return connection.getresponse().status

        for _ in range(2):  # hvd.init(), and once more after hvd.shutdown()
            for path in ("/local_here/0", "/local_here/1", "/cross_0/0", "/other/0"):
                assert ask("GET", path) == 404
                assert ask("PUT", path) == 200
            for path in ("/local_here/0", "/cross_0/0"):
                assert ask("DELETE", path) == 200
            assert ask("GET", "/local_here/0") == 200  # the late rank may yet ask for it
            assert ask("GET", "/cross_0/0") == 404
            assert ask("DELETE", "/local_here/1") == 200
            assert ask("DELETE", "/other/0") == 200


@pytest.fixture
def join():
    """A function that makes a rank of a manager."""
    ranks = []

    def make(manager, rank):
        ranks.append(Rank(manager, rank))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.close()


@pytest.fixture
def horovod(monkeypatch):
    """A function that says which MPI the installed Horovod has."""
    here = find_horovod()

    def make(version):
        monkeypatch.setattr(room, "find_horovod", lambda: dataclasses.replace(here, mpi=version))

    return make


def test_ranks_learn_their_number_and_that_they_share_a_machine(join):
    with ProcessManager(2) as manager:
        for number in range(2):
            rank = join(manager, number)
            assert rank.told[1:3] == ["cmd=set size=2", f"cmd=set rank={number}"]
            assert "pmi_version=1 pmi_subversion=1 rc=0" in rank.ask("cmd=init pmi_version=1 pmi_subversion=1")
            assert rank.ask("cmd=get kvsname=x key=PMI_process_mapping").endswith(" value=(vector,(0,1,2))")
            assert rank.ask("cmd=finalize") == "cmd=finalize_ack rc=0"


def test_what_one_rank_puts_the_other_gets_after_the_barrier(join):
    with ProcessManager(2) as manager:
        first, second = join(manager, 0), join(manager, 1)
        assert "rc=-1" in second.ask("cmd=get kvsname=x key=card")
        assert "rc=0" in first.ask("cmd=put kvsname=x key=card value=a b=c, value=d")
        first.say("cmd=barrier_in")
        assert second.ask("cmd=barrier_in") == first.hear() == "cmd=barrier_out rc=0"
        assert second.ask("cmd=get kvsname=x key=card").endswith(" value=a b=c, value=d")


def test_a_barrier_waits_for_the_last_rank(join):
    with ProcessManager(2) as manager:
        first, second = join(manager, 0), join(manager, 1)
        first.say("cmd=barrier_in")
        out = threading.Event()
        threading.Thread(target=lambda: (first.hear(), out.set()), daemon=True).start()
        assert not out.wait(0.2)
        second.ask("cmd=barrier_in")
        assert out.wait(DEADLINE)


def test_a_rank_that_never_comes_is_named(join, capfd):
    with ProcessManager(3, patience_s=0.2) as manager:
        first, second = join(manager, 0), join(manager, 2)
        first.say("cmd=barrier_in")
        assert second.ask("cmd=barrier_in") == first.hear() == ""  # hung up, on which MPICH ends the rank
    assert capfd.readouterr().err.count("rank 1 did not reach hvd.init() within 0.2 s") == 1


def test_a_rank_that_has_come_may_take_its_time(join, capfd):
    with ProcessManager(2, patience_s=0.5) as manager:
        first = join(manager, 0)
        first.say("cmd=barrier_in")
        second = join(manager, 1)
        time.sleep(0.7)
        assert second.ask("cmd=barrier_in") == first.hear() == "cmd=barrier_out rc=0"
    assert "did not reach" not in capfd.readouterr().err


def test_a_job_that_ends_blames_no_rank(join, capfd):
    with ProcessManager(2) as manager:
        first = join(manager, 0)
        first.say("cmd=barrier_in")
    assert first.hear() == ""
    assert "did not reach" not in capfd.readouterr().err


def test_a_question_it_does_not_know_ends_the_talk(join):
    with ProcessManager(1) as manager:
        assert join(manager, 0).ask("cmd=spawn nprocs=2") == ""


def test_shared_memory_of_killed_ranks_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(rendezvous, "SHARED_MEMORY", tmp_path)
    (tmp_path / "mpich_shm_123_0").touch()  # another job's
    with ProcessManager(2) as manager:
        monkeypatch.setattr(manager, "_name", "kvs")
        (tmp_path / "mpich_shm_623612a5_0").touch()  # as MPICH 5.0.2 was seen to name it
    assert [file.name for file in tmp_path.iterdir()] == ["mpich_shm_123_0"]


@pytest.mark.parametrize("version", [None, "Open MPI v5.0.11"])
def test_a_horovod_without_mpich_is_refused(horovod, version):
    horovod(version)
    with pytest.raises(HorovodError, match=rf"it has {version or 'no MPI'}; pip install 'tfperf\[mpi\]'"):
        launch(Job(["true"], ranks=2, mpi=True))


@pytest.mark.parametrize(
    "options",
    [
        {"hosts": parse_hosts("localhost:1,elsewhere.invalid:1")},
        {"hosts": parse_hosts("localhost:1,127.0.0.1:1"), "least": 1},
    ],
)
def test_ranks_elsewhere_or_elastic_ones_are_refused(horovod, options):
    horovod("MPICH Version: 5.0.2")
    with pytest.raises(HorovodError, match="expected --mpi with a fixed number of ranks on this machine"):
        launch(Job(["true"], mpi=True, **options))


def test_ranks_are_told_to_use_mpi(horovod, capfd):
    horovod("MPICH Version: 5.0.2")
    tell = "import os; print(os.environ['HOROVOD_CONTROLLER'], os.environ['UCX_TLS'], os.environ['PMI_ID'])"
    assert launch(Job([sys.executable, "-c", tell], ranks=2, mpi=True)) is None
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] mpi self,sm 0", "[1] mpi self,sm 1"]


def test_ranks_wait_for_each_other_as_long_as_they_are_told_to(horovod, monkeypatch):
    horovod("MPICH Version: 5.0.2")
    waited = []

    class Noting(ProcessManager):
        def __init__(self, size, *patience):
            super().__init__(size, *patience)
            waited.append(self._patience)

    monkeypatch.setattr(static, "ProcessManager", Noting)
    monkeypatch.delenv(START_VARIABLE, raising=False)
    for options in ({}, {"start_timeout": 7}, {"environment": os.environ | {START_VARIABLE: "9"}}):
        assert launch(Job(["true"], ranks=1, mpi=True, **options)) is None
    assert waited == [START_TIMEOUT, 7, 9]


SUM = """\
import numpy, psutil
import horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(numpy.ones(3, numpy.float32), op=hvd.Sum, name="sum").numpy().tolist()
listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
print(hvd.size(), hvd.local_size(), total, listening <= {"127.0.0.1"})
"""


@pytest.mark.skipif("MPICH" not in ((find_horovod() and find_horovod().mpi) or ""), reason="needs Horovod with MPICH")
def test_two_ranks_sum_over_mpi_and_listen_on_loopback_only(capfd):
    assert launch(Job([sys.executable, "-c", SUM], ranks=2, mpi=True)) is None
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[")]
    assert sorted(lines) == [f"[{rank}] 2 2 [2.0, 2.0, 2.0] True" for rank in range(2)]
