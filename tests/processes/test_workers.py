"""Functions in processes of their own: their outputs, their failures, and that they end however the caller ends."""

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from tfperf.errors import TfperfError
from tfperf.processes import workers as processes
from tfperf.processes.workers import WorkerProcesses

DEADLINE = 60

PROGRAM = """
    import sys, time
    from tfperf.processes.workers import WorkerProcesses

    def wait(seconds):
        time.sleep(seconds)

    if __name__ == "__main__":
        with WorkerProcesses(2) as workers:
            workers.run(wait, [(0,), (0,)])
            print("ready", flush=True)
            workers.run(wait, [(600,), (600,)])
"""


def own_number(*_):
    return os.getpid()


def divide(number, by):
    return number / by


def meet(folder, name, other):
    """Wait until the other process is at this place too."""
    Path(folder, name).touch()
    until = time.monotonic() + DEADLINE
    while not Path(folder, other).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return name


def compute(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return seconds


def sleep_or_compute(seconds):
    time.sleep(600) if seconds is None else compute(seconds)


def answer_half():
    """Begin to send an output, and stand still."""
    pipe = sys._getframe(1).f_locals["pipe"]
    os.write(pipe.fileno(), struct.pack("!i", 100) + b"half")
    os.kill(os.getpid(), signal.SIGSTOP)


def unpicklable():
    return lambda: None


def are_gone(numbers):
    _, alive = psutil.wait_procs([psutil.Process(one) for one in numbers if psutil.pid_exists(one)], timeout=DEADLINE)
    return not alive


def test_a_function_runs_in_all_of_them_at_once(tmp_path):
    with WorkerProcesses(2) as workers:
        assert workers.run(meet, [(tmp_path, "left", "right"), (tmp_path, "right", "left")]) == ["left", "right"]


def test_they_are_the_same_processes_from_call_to_call_and_end_with_the_block():
    with WorkerProcesses(2) as workers:
        first, second = workers.run(own_number, [(), ()])
        assert len({first, second, os.getpid()}) == 3
        assert workers.run(own_number, [()]) == [first]
        assert workers.run(own_number, [(1,), (2,)]) == [first, second]
    assert are_gone([first, second])


def test_a_failure_is_one_line_and_ends_them_all():
    with WorkerProcesses(2) as workers:
        numbers = workers.run(own_number, [(), ()])
        with pytest.raises(TfperfError, match="divide has failed in process 1 of 2: ZeroDivisionError") as told:
            workers.run(divide, [(1, 0), (1, 1)])
        assert "\n" not in str(told.value)
        assert are_gone(numbers)
        with pytest.raises(ValueError, match="at most 0 calls"):
            workers.run(divide, [(1, 1)])


def test_an_output_that_cannot_be_sent_is_one_line():
    with WorkerProcesses(1) as workers, pytest.raises(TfperfError, match="unpicklable has failed"):
        workers.run(unpicklable, [()])


def test_one_that_has_ended_is_one_line():
    with WorkerProcesses(2) as workers:
        numbers = workers.run(own_number, [(), ()])
        os.kill(numbers[1], signal.SIGKILL)
        with pytest.raises(TfperfError, match="within 120 s; process 2 of 2 has ended, killed by SIGKILL"):
            workers.run(own_number, [(), ()])
        assert are_gone(numbers)


def test_one_that_is_late_is_one_line():
    with WorkerProcesses(1) as workers:
        numbers = workers.run(own_number, [()])
        workers._deadline = 0.1
        with pytest.raises(TfperfError, match=r"within 0\.1 s; at work still: process 1 of 1"):
            workers.run(time.sleep, [(600,)])
        assert are_gone(numbers)


def test_the_first_failure_ends_them_while_others_work():
    with WorkerProcesses(2, names=["the one", "the other"]) as workers:
        numbers = workers.run(own_number, [(), ()])
        with pytest.raises(TfperfError, match="sleep has failed in the other: TypeError"):
            workers.run(time.sleep, [(600,), ("long",)])
        assert are_gone(numbers)


def test_a_call_may_have_a_deadline_of_its_own():
    with WorkerProcesses(1) as workers, pytest.raises(TfperfError, match=r"within 0\.1 s"):
        workers.run(time.sleep, [(600,)], deadline=0.1)


def test_a_function_that_they_cannot_import_goes_by_value():
    scale = 3
    with WorkerProcesses(1) as workers:
        assert workers.run(lambda number: number * scale, [(2,)]) == [6]


def test_it_says_which_has_ended():
    with WorkerProcesses(2, names=["the one", "the other"]) as workers:
        numbers = workers.run(own_number, [(), ()])
        assert workers.first_ended() is None
        os.kill(numbers[1], signal.SIGKILL)
        until = time.monotonic() + DEADLINE
        while workers.first_ended() is None:
            assert time.monotonic() < until
        assert workers.first_ended() == "the other has ended, killed by SIGKILL"


def test_an_error_of_the_caller_ends_them():
    def fail():
        with WorkerProcesses(2) as workers:
            numbers.extend(workers.run(own_number, [(), ()]))
            raise KeyError("of the caller")

    numbers = []
    with pytest.raises(KeyError, match="of the caller"):
        fail()
    assert are_gone(numbers)


def test_too_few_processes_and_too_many_calls_are_refused():
    with pytest.raises(ValueError, match=r"expected at least 1 process\. Received: 0"):
        WorkerProcesses(0)
    with WorkerProcesses(1) as workers, pytest.raises(ValueError, match="expected at most 1 calls, one a process"):
        workers.run(own_number, [(), ()])


def test_signals_are_handled_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with WorkerProcesses(1):
        assert signal.getsignal(signal.SIGINT) == before[0]
        assert signal.getsignal(signal.SIGTERM) == signal.default_int_handler
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_may_use_them():
    found = []

    def use():
        with WorkerProcesses(1) as workers:
            found.extend(workers.run(divide, [(6, 3)]))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(DEADLINE)
    assert found == [2.0]


@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)],  # all: as Ctrl-C in a terminal
)
def test_they_end_with_the_program(tmp_path, number, to_all):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    everybody = []
    with subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            everybody = psutil.Process(process.pid).children(recursive=True)
            assert len([one for one in everybody if "spawn_main" in " ".join(one.cmdline())]) == 2
            if to_all:
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)
            _, errors = process.communicate(timeout=DEADLINE)
            assert errors.count("KeyboardInterrupt") == (number != signal.SIGKILL)  # the program's alone
            _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
            assert not alive
        finally:
            for member in everybody:
                if member.is_running():
                    member.kill()
            process.kill()


def test_a_process_that_does_nothing_where_it_should_compute_is_named():
    with WorkerProcesses(2, DEADLINE) as workers:
        assert workers.run(compute, [(1.5,), (2.0,)], idle_limit=1.0) == [1.5, 2.0]
        with pytest.raises(TfperfError, match=r"within 60 s; process 2 of 2 has done nothing for 1 s$"):
            workers.run(sleep_or_compute, [(3.0,), (None,)], idle_limit=1.0)


def test_a_process_that_is_stopped_is_named_and_ended(monkeypatch):
    monkeypatch.setattr(processes, "IDLE_LIMIT", 1.0)
    with WorkerProcesses(2, DEADLINE) as workers:
        numbers = workers.run(own_number, [(), ()])
        assert workers.first_resting() is None
        os.kill(numbers[1], signal.SIGSTOP)
        with pytest.raises(TfperfError, match=r"process 2 of 2 is stopped, for 1 s$"):
            workers.run(own_number, [(), ()])
        assert are_gone(numbers)


LARGE = b"x" * 2**23
"""More than a pipe holds."""


def test_arguments_that_a_process_does_not_read_are_an_error_in_time():
    with WorkerProcesses(2, DEADLINE) as workers:
        numbers = workers.run(own_number, [(), ()])
        os.kill(numbers[1], signal.SIGSTOP)
        with pytest.raises(TfperfError, match=r"within 0\.5 s; at work still: process 2 of 2$"):
            workers.run(own_number, [(LARGE,), (LARGE,)], deadline=0.5)
        assert are_gone(numbers)


def test_an_output_of_which_half_comes_is_an_error_in_time():
    with WorkerProcesses(2, DEADLINE) as workers:
        numbers = workers.run(own_number, [(), ()])
        with pytest.raises(TfperfError, match=r"within 0\.5 s; at work still: process 1 of 2$"):
            workers.run(answer_half, [()], deadline=0.5)
        assert are_gone(numbers)


def test_one_that_ends_while_it_is_sent_arguments_is_named():
    with WorkerProcesses(1, DEADLINE) as workers:
        [number] = workers.run(own_number, [()])
        os.kill(number, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (number, signal.SIGKILL)).start()
        with pytest.raises(TfperfError, match=r"process 1 of 1 has ended, killed by SIGKILL$"):
            workers.run(own_number, [(LARGE,)])


def test_what_is_large_arrives_whatever_other_sockets_have_to_keep_to():
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(1e-3)
    try:
        with WorkerProcesses(1, DEADLINE) as workers:
            assert workers.run(bytes, [(LARGE,)]) == [LARGE]
    finally:
        socket.setdefaulttimeout(before)


def test_a_process_that_goes_on_in_time_is_not_named(monkeypatch):
    monkeypatch.setattr(processes, "IDLE_LIMIT", 2.0)
    with WorkerProcesses(1, DEADLINE) as workers:
        [number] = workers.run(own_number, [()])
        os.kill(number, signal.SIGSTOP)
        threading.Timer(0.7, os.kill, (number, signal.SIGCONT)).start()
        assert workers.run(own_number, [()]) == [number]
