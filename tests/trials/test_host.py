"""Whatever an engine does, its process keeps to its limits, its end is told in one line, and nothing is left of it."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tfperf.trials import host
from tfperf.trials.host import Child
from tfperf.trials.trial import Status, TrialError

LIMIT = 400 * 2**20

PARENT = """
import sys
from pathlib import Path
from tfperf.trials.host import Child
from tfperf.engines.plan import Plan
from tfperf.trials.process import EngineProcess
from tfperf.exports.signature import Signature
with EngineProcess(Plan(engine=sys.argv[1]), Child()) as process:
    print(process.host.pid, flush=True)
    process.load(Path(sys.argv[2]), Signature.model_validate_json(sys.argv[3]))
    print("loaded", flush=True)
    process.check(*sys.argv[4:])
"""


@contextlib.contextmanager
def parent(planted, engine):
    """Another process that has loaded an engine in a process of its own, and waits for its answers."""
    arguments = [engine, planted.folder, planted.signature.model_dump_json(), 4, planted.inputs, planted.reference]
    program = PARENT.replace("*sys.argv[4:]", "int(sys.argv[4]), *map(Path, sys.argv[5:])")
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            process.host = psutil.Process(int(process.stdout.readline()))
            assert process.stdout.readline() == "loaded\n"
            yield process
        finally:
            process.kill()


def failure(planted, engine, **limits):
    """How an engine fails: when it is loaded or when its answers are checked."""
    with planted.process(engine, **limits) as process:

        def run():
            planted.load(process)
            planted.check(process)

        with pytest.raises(TrialError) as told:
            run()
        assert planted.nothing_left()  # before the block ends: it would disturb those that are measured
        with pytest.raises(TrialError) as again:
            process.work(planted.batch).timed(1)
        assert str(again.value) == str(told.value)
    return told.value.status, str(told.value)


def later(seconds, act):
    """Do something in another thread while this one waits."""
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("engine", "status", "words"),
    [
        ("exits", Status.CRASHED, "exits: its process ended with exit code 7: \x1b[31mout of luck"),
        ("stops_itself", Status.CRASHED, "stops_itself: its process ended with exit code 1: usage: planted"),
        ("segfault", Status.CRASHED, "segfault: its process was killed by SIGSEGV"),
    ],
)
def test_a_process_that_dies_is_told_with_its_last_words(engine, status, words, planted, monkeypatch):
    monkeypatch.chdir(planted.temporary)  # where a core would be
    assert failure(planted, engine) == (status, words)


@pytest.mark.parametrize("engine", ["hang_in_build", "hang_in_call"])
def test_a_process_that_does_not_answer_is_ended(engine, planted):
    words = f"{engine}: no answer within 1.5 s; its process was ended"
    assert failure(planted, engine, deadline=1.5) == (Status.TIMED_OUT, words)


@pytest.mark.parametrize("engine", ["hog", "hog_child"])
def test_a_process_that_takes_too_much_memory_is_ended(engine, planted):
    words = f"{engine}: took more than 0.391 GiB of memory; its process was ended"
    assert failure(planted, engine, memory_limit=LIMIT) == (Status.OUT_OF_MEMORY, words)


def test_memory_is_looked_at_however_quick_the_answers_are(planted, monkeypatch):
    monkeypatch.setattr(host, "SLICE", 1.0)  # longer than any answer takes, so that none is waited for in slices
    planted.set(bytes=8 * 2**20, seconds=0.01)
    with planted.process("grows", memory_limit=LIMIT) as process:
        planted.load(process)
        planted.check(process)
        work = process.work(planted.batch)
        with pytest.raises(TrialError, match=r"^grows: took more than 0\.391 GiB of memory; its process was ended$"):
            sum(work.timed(1) for _ in range(300))  # 3 s
        assert work.failure.status is Status.OUT_OF_MEMORY
        assert planted.nothing_left()


def test_a_process_that_shuts_its_pipes_is_ended(planted, monkeypatch):
    monkeypatch.setattr(host, "GRACE", 0.5)
    words = "shuts_pipes: closed the pipe for its answers; its process was ended"
    assert failure(planted, "shuts_pipes") == (Status.CRASHED, words)


@pytest.mark.parametrize("way", ["close", "crash", "deadline"])
@pytest.mark.parametrize("engine", ["forker", "spinner_child", "hidden_child"])
def test_what_it_started_ends_with_it(engine, way, planted):
    with contextlib.suppress(ZeroDivisionError), planted.process(engine) as process:
        planted.load(process)
        assert planted.check(process).agreement.passed
        (started,) = planted.started()
        assert os.getsid(started.pid) == started.pid != process.host.pid
        if way == "close":
            raise ZeroDivisionError
        process.host._deadline = 0.5
        os.kill(process.host.pid, signal.SIGKILL if way == "crash" else signal.SIGSTOP)
        words = (
            "killed by SIGKILL, as Linux does where memory runs out$" if way == "crash" else "no answer within 0.5 s"
        )
        with pytest.raises(TrialError, match=words):
            process.work(planted.batch).timed(1)
    assert planted.nothing_left()


def test_output_without_end_is_read_and_forgotten(planted):
    planted.set(bytes=2**30)
    before = psutil.Process().memory_info().rss
    with planted.process("flood") as process:
        planted.load(process)
        assert planted.check(process).agreement.passed
        assert process.work(planted.batch).timed(2) > 0
        assert psutil.Process().memory_info().rss - before < 30 * 2**20
    assert planted.nothing_left()


def test_requests_are_not_for_the_engine_to_read(planted):
    with planted.process("reads") as process:
        planted.load(process)
        assert planted.check(process).agreement.passed


def test_an_error_of_the_engine_is_an_answer(planted):
    with planted.process("raises") as process:
        planted.load(process)
        for _ in range(2):
            with pytest.raises(TrialError, match=r"^raises: RuntimeError: no such operation$") as told:
                planted.check(process)
            assert told.value.status is Status.REFUSED
        assert process.work(planted.batch).memory().resident > 2**20


def test_it_outlives_the_thread_that_started_it(planted):
    """Linux takes the end of that thread for the end of the parent."""
    with ThreadPoolExecutor(1) as pool:
        process = pool.submit(planted.process, "honest").result()
        with process:
            pool.submit(planted.load, process).result()
            pool.shutdown()
            assert planted.check(process).agreement.passed


def test_closing_it_in_another_thread_ends_the_waiting_at_once(planted):
    with planted.process("hang_in_build") as process:
        timer = later(0.5, process.close)
        began = time.monotonic()
        with pytest.raises(TrialError, match=r"^hang_in_build: its process was ended$"):
            planted.load(process)
        assert time.monotonic() - began < 30  # of 60
        timer.join()
        assert planted.nothing_left()
        with pytest.raises(TrialError, match=r"^hang_in_build: its process was ended$"):
            planted.load(process)


def test_an_interrupted_question_is_not_answered_later(planted, monkeypatch):
    looks = itertools.count()

    def interrupt(*_):
        if next(looks):  # the first look comes before the question is sent, the second while it waits for the answer
            signal.raise_signal(signal.SIGINT)

    with planted.process("honest") as process:
        planted.load(process)
        planted.check(process)
        with monkeypatch.context() as patch:
            patch.setattr(Child, "_look", interrupt)
            with pytest.raises(KeyboardInterrupt):
                process.work(planted.batch).timed(10**6)
        assert planted.nothing_left()
        with pytest.raises(TrialError, match=r"^honest: it was interrupted; its process was ended$"):
            planted.check(process)


def test_a_pause_stops_all_of_it_and_does_not_count(planted, within_seconds):
    with planted.process("spinner_child", deadline=60) as process:
        planted.load(process)
        planted.check(process)
        family = [psutil.Process(process.host.pid), *planted.started()]
        with contextlib.suppress(ZeroDivisionError), process.host.paused():
            assert within_seconds(lambda: {one.status() for one in family} == {psutil.STATUS_STOPPED})
            process.host._deadline = 5.0
            answers = []
            asking = threading.Thread(target=lambda: answers.append(process.work(planted.batch).timed(1)))
            asking.start()
            asking.join(7.0)
            assert asking.is_alive()
            raise ZeroDivisionError
        asking.join(30)
        assert len(answers) == 1
        assert within_seconds(lambda: psutil.STATUS_STOPPED not in {one.status() for one in family})
    assert planted.nothing_left()


def test_a_process_can_be_closed_while_it_stands_still(planted):
    with planted.process("forker") as process:
        planted.load(process)
        with process.host.paused():
            process.close()
            assert planted.nothing_left()


def test_it_ends_when_its_parent_is_killed(planted):
    with parent(planted, "hang_in_call") as killed:
        assert killed.host.is_running()
        killed.kill()
    assert planted.nothing_left()


def test_it_ends_when_its_parent_is_killed_while_it_stands_still_since_its_start(within_seconds):
    program = """
import os, signal
from tfperf.trials.host import Child
child = Child()
with child.paused():
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert within_seconds(lambda: not psutil.pid_exists(int(done.stdout)))


@pytest.mark.parametrize("hangs_up", ["SIG_DFL", "SIG_IGN"])
def test_what_it_started_ends_when_its_parent_is_killed_while_all_stands_still(hangs_up, planted):
    """It ends too where a library starts it for a moment, even before it has become another program."""
    program = f"import os, signal\nsignal.signal(signal.SIGHUP, signal.{hangs_up})  # as nohup does\n" + PARENT.replace(
        "    process.check(*sys.argv[4:])\n",
        "    with process.host.paused():\n        os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    arguments = ["plain_child", planted.folder, planted.signature.model_dump_json()]
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert planted.nothing_left()


def test_it_ends_when_its_parent_is_interrupted(planted):
    with parent(planted, "hang_in_call") as interrupted:
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(30) in (-signal.SIGINT, 130)
        assert interrupted.stderr.read().endswith("KeyboardInterrupt\n")
    assert planted.nothing_left()


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        Child()


def test_signals_without_a_name_are_told_by_their_number():
    assert host._signal_name(signal.SIGKILL) == "SIGKILL"
    assert host._signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"
