"""A command that is waited for: what it wrote, how it ended, and nothing left of it."""

import io
import sys
import threading

import psutil
import pytest

from tfperf.processes import LastBytes, run, running


def python(program, **settings):
    return run([sys.executable, "-c", program], **settings)


def test_what_it_wrote_and_its_code_come_back():
    assert python("import sys; print('é'); print('no', file=sys.stderr); sys.exit(3)") == (3, "é\n", "no\n")
    assert python("import sys; print('a', flush=True); print('b', file=sys.stderr)", merged=True) == (0, "a\nb\n", "")


def test_it_reads_what_it_is_given_or_nothing():
    assert python("import sys; print(sys.stdin.read())", stdin=b"x").output == "x\n"
    assert python("import sys; print(repr(sys.stdin.read()))").output == "''\n"
    assert python("pass", stdin=b"x" * 2**16).code == 0


def test_of_much_output_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(running, "MOST_OUTPUT", 4)
    assert python("print('0' * 10**6 + 'end')").output == "end\n"


class ClosedMeanwhile(io.BytesIO):
    """A pipe that is closed by its owner between two reads of the thread that reads it."""

    def read1(self, size):
        piece = super().read1(3)
        self.close()
        return piece


def test_a_pipe_that_its_owner_closes_is_at_its_end(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    assert LastBytes(ClosedMeanwhile(b"one two")).text(60) == "one"
    closed = io.BytesIO(b"one two")
    closed.close()
    assert LastBytes(closed).text(60) == ""
    assert raised == []


def test_one_that_is_late_is_ended_with_all_that_it_started(tmp_path):
    program = f"""
import subprocess, sys, time
other = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pid")!r}, "w").write(str(other.pid))
time.sleep(600)
"""
    with pytest.raises(TimeoutError, match="within 2 s"):
        python(program, deadline=2)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_what_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError) as told:
        run(["no-such-command-at-all"])
    assert told.value.filename == "no-such-command-at-all"
