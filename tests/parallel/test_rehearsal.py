"""Rehearsals: what workers note, what is told of it, and that all workers end however the caller ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid

import psutil
import pytest
from matplotlib.figure import Figure

from tests.fixtures.marked import MARK, end_marked, marked
from tfperf.errors import TfperfError
from tfperf.parallel import rehearsal as room
from tfperf.parallel.rehearsal import Rehearsal, RehearsedWorker, TrainedBatch, rehearse
from tfperf.processes.signals import handling

DEADLINE = 60
HANG = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

CALLER = f"""
    import sys
    from tfperf.parallel.rehearsal import rehearse
    rehearse([sys.executable, "-c", {HANG!r}], ["localhost", "127.0.0.1"], deaths={{}}, joins={{}})
"""


@pytest.fixture
def mark(monkeypatch, tmp_path):
    """A mark that all processes of the test's rehearsals have; those that are left end with the test."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield mark
    end_marked(mark)


def hanging(mark):
    """How many workers and their keepers hang already."""
    found = 0
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):  # one that ends meanwhile
            found += any(HANG in part for part in process.cmdline())
    return found


def until(happened, what):
    end = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def program(text):
    """The command of workers that run a program, after the lines that all of them begin with."""
    first = "import os, sys\nfrom tfperf.parallel.rehearsal import RehearsedWorker\nworker = RehearsedWorker()\n"
    return [sys.executable, "-c", first + textwrap.dedent(text)]


def batch(host, number, workers, end):
    return TrainedBatch(host, number, workers, end - 0.5, end)


FIRST = [batch(host, number, 2, number + delay) for number in range(5) for host, delay in (("a", 1.0), ("b", 1.1))]
ALONE = [batch("a", number, 1, 7.0 + number) for number in range(3, 8)]  # from the commit of batch 3 on
TOGETHER = [batch(host, number, 2, 12.0 + number) for number in (8, 9) for host in ("a", "c")]
STORY = Rehearsal((*FIRST, *ALONE, *TOGETHER), {"b": 5.25}, {})
"""The worker on b dies at batch 5, that on c joins at batch 8; times in seconds."""


def test_repeated_batches_are_those_that_one_worker_trained_on_twice():
    assert STORY.repeated() == [3, 4]
    assert Rehearsal(tuple(FIRST), {}, {}).repeated() == []


def test_a_recovery_lasts_from_the_death_until_the_lost_batches_are_done_again():
    assert STORY.recovery() == (10.0 - 5.25, 11.0 - 5.25)
    with pytest.raises(ValueError, match="expected a death that lost batches"):
        Rehearsal(tuple(FIRST), {}, {}).recovery()


def test_a_joining_lasts_from_the_last_batch_before_it_to_the_first_with_it():
    assert STORY.joining("c") == 20.0 - 14.0
    for host in ("nobody", "a"):
        with pytest.raises(ValueError, match=f"joined while others trained. Received: {host}"):
            STORY.joining(host)


def test_it_is_drawn_near_the_death_and_as_a_whole():
    figure = Figure()
    STORY.draw(figure)
    near, whole = figure.axes
    low, high = near.get_xlim()
    assert low < 0 < STORY.recovery()[0] < high
    assert near.get_ylim()[0] < 3 < 5 < near.get_ylim()[1]
    assert [text.get_text() for text in whole.get_legend().get_texts()] == ["a", "b", "c"]
    assert sum(len(line.get_xdata()) for line in whole.get_lines() if line.get_marker() != "None") == len(STORY.batches)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder of a rehearsal of which this process is a worker on 127.0.0.1, to be killed at batch 2."""
    (tmp_path / room._SCHEDULE).write_text(json.dumps([{"127.0.0.1": 2}, {"127.1": 1}]))
    (tmp_path / room._HOSTS).write_text("127.0.0.1:1\n")
    monkeypatch.setenv(room._FOLDER, str(tmp_path))
    monkeypatch.setenv("HOROVOD_HOSTNAME", "127.0.0.1")
    return tmp_path


def test_a_worker_keeps_to_the_schedule_and_notes_what_it_did(folder, monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    worker = RehearsedWorker()
    assert worker.is_rehearsing
    for number in range(3):
        with worker.training_on(number, 2):
            assert killed == ([(os.getpid(), signal.SIGKILL)] if number == 2 else [])
            assert (folder / room._HOSTS).read_text() == "127.0.0.1:1\n" + "127.1:1\n" * (number > 0)
    worker.hand_in(ledger=[0, 1])
    told = room._read(folder)
    assert [(one.host, one.number, one.workers) for one in told.batches] == [("127.0.0.1", one, 2) for one in range(3)]
    assert all(one.begin <= one.end for one in told.batches)
    assert told.batches[1].end <= told.deaths["127.0.0.1"] <= told.batches[2].end
    assert told.results == {"ledger": [0, 1]}


def test_a_batch_that_fails_is_not_noted(folder):
    worker = RehearsedWorker()
    with pytest.raises(RuntimeError), worker.training_on(0, 2):
        raise RuntimeError
    assert not list(folder.glob("*.notes"))


def test_outside_of_a_rehearsal_a_worker_does_nothing(monkeypatch, tmp_path):
    monkeypatch.delenv(room._FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    worker = RehearsedWorker()
    assert not worker.is_rehearsing
    with worker.training_on(0, 1):
        pass
    worker.hand_in(ledger=[])
    assert not list(tmp_path.iterdir())


def test_what_a_worker_did_comes_back_and_nothing_else_stays(mark, tmp_path):
    command = program("""
        for number in range(2):
            with worker.training_on(number, 1):
                open("left behind", "w").close()
        worker.hand_in(arguments=sys.argv[1:])
    """)
    told = rehearse([*command, "argument"], ["localhost"], deaths={}, joins={}, deadline=DEADLINE)
    assert [(one.host, one.number, one.workers) for one in told.batches] == [("localhost", 0, 1), ("localhost", 1, 1)]
    assert told.deaths == {}
    assert told.results == {"arguments": ["argument"]}
    assert not list(tmp_path.iterdir()), "the scratch folder goes with it"
    assert marked(mark) == []


def test_one_of_two_is_killed_and_a_third_joins(mark):
    command = program("""
        import keras, numpy as np
        import tfperf.parallel.horovod as hvd

        hvd.init()
        net = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        state = hvd.elastic.KerasState(net, batch=0, last=0)

        @hvd.elastic.run
        def train(state):
            state.last = 10**6 if hvd.size() == 1 else state.batch + 5  # alone it waits for the third
            while state.batch < state.last:
                with worker.training_on(state.batch, hvd.size()):
                    net.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
                state.batch += 1
                if state.batch % 2 == 0:
                    state.commit()

        train(state)
        if hvd.rank() == 0:
            worker.hand_in(last=[state.last])
    """)
    told = rehearse(command, ["localhost", "127.0.0.1"], deaths={"127.0.0.1": 3}, joins={"127.1": 4}, deadline=180)
    assert set(told.deaths) == {"127.0.0.1"}
    assert told.repeated() == [2]
    assert {(one.host, one.workers) for one in told.batches} == {
        *((host, 2) for host in ("localhost", "127.0.0.1", "127.1")),
        ("localhost", 1),
    }
    assert max(one.number for one in told.batches) == told.results["last"][0] - 1
    assert [one.end for one in told.batches] == sorted(one.end for one in told.batches)
    restart, again = told.recovery()
    assert 0 < restart <= again < told.joining("127.1")  # a new process imports TensorFlow, one that is left does not
    assert marked(mark) == []


def test_workers_that_fail_are_told_in_one_line(mark, tmp_path):
    with pytest.raises(TfperfError, match=r"the workers failed, exit code 7: .*broken on purpose") as error:
        rehearse(program("print('broken on purpose'); sys.exit(7)"), ["localhost"], deaths={}, joins={})
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_workers_that_hand_nothing_in_are_told(mark):
    with pytest.raises(TfperfError, match=r"expected rank 0 to call RehearsedWorker\.hand_in"):
        rehearse(program(""), ["localhost"], deaths={}, joins={})


def test_hosts_elsewhere_are_refused(mark):
    for hosts, joins in ((["192.0.2.1"], {}), (["localhost"], {"192.0.2.1": 1})):  # of RFC 5737, nobody's
        with pytest.raises(ValueError, match=r"names of this machine\. Received: 192\.0\.2\.1"):
            rehearse(program(""), hosts, deaths={}, joins=joins)


def test_workers_that_hang_are_ended_at_the_deadline(mark):
    with pytest.raises(TfperfError, match="the workers failed, not ended after 6 s"):
        rehearse([sys.executable, "-c", HANG], ["localhost", "127.0.0.1"], deaths={}, joins={}, deadline=6)
    assert marked(mark) == []


def test_workers_are_ended_on_sigterm(mark):
    over, late = threading.Event(), []

    def note(*_):  # a signal that comes after the rehearsal would end the process of all tests
        late.append(signal.SIGTERM)

    def terminate():
        while not over.wait(0.1):
            if hanging(mark) >= 4:  # both workers and their keepers, beside the launcher
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=terminate)
    with handling(signal.SIGTERM, note):
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                rehearse(
                    [sys.executable, "-c", HANG], ["localhost", "127.0.0.1"], deaths={}, joins={}, deadline=DEADLINE
                )
        finally:
            over.set()
            thread.join()
        assert signal.getsignal(signal.SIGTERM) is note
    assert marked(mark) == []
    assert late == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_workers_end_where_the_caller_is_killed(mark):
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(CALLER)]) as caller:
        until(lambda: hanging(mark) >= 4, "the workers did not start")
        caller.kill()
    until(lambda: not marked(mark), "workers outlive the caller")
