"""Launches in processes of their own, whose every descendant is found by a mark in its environment."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid

import psutil
import pytest

from tests.fixtures.marked import MARK, end_marked, listening, marked

DEADLINE = 240
"""Seconds after which a launch hangs; importing TensorFlow twice on a busy machine takes a good part of them."""


class Launched:
    """A running `tfperf launch`: what it prints, line by line, and its processes."""

    def __init__(self, process, token, errors):
        self.process = process
        self.token = token
        self._errors = errors

    def read_until(self, words, times=1):
        """Read its output until a line with these words has come so often; the lines read."""
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            times -= words in line
            if times == 0:
                return lines
        raise AssertionError(f"it ended before {words!r} came; it said: {lines} {self.errors()}")

    def errors(self):
        return self._errors.read_text()

    def wait(self):
        return self.process.wait(DEADLINE)

    def all_gone(self, seconds):
        """Whether none of its processes is left after so many seconds."""
        descendants = [process for process in marked(self.token) if process.pid != self.process.pid]
        _, alive = psutil.wait_procs(descendants, timeout=seconds)
        self.process.wait(seconds)
        return not alive and not marked(self.token)

    def sockets(self):
        """(process id, address) of each socket that one of its processes listens on."""
        return listening(marked(self.token))


@pytest.fixture
def launched(tmp_path):
    """A function that starts `tfperf launch`; all that it started is killed at the end of the test."""
    tokens, timers, processes, late, files = [], [], [], [], []

    def dump_and_kill(token):
        """Have all that is Python tell where each of its threads stands; that is among the errors of the launch."""
        late.append(token)
        processes = marked(token)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGABRT)
        psutil.wait_procs(processes, timeout=5)
        end_marked(token)

    def launched(*arguments, tfperf=("-m", "tfperf"), stdout=subprocess.PIPE, **variables):
        token = uuid.uuid4().hex
        tokens.append(token)
        errors = tmp_path / f"stderr.{len(tokens)}"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, *tfperf, "launch", *map(str, arguments)],
                cwd=tmp_path,
                env=os.environ | variables | {MARK: token, "PYTHONFAULTHANDLER": "1"},
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        timers.append(threading.Timer(DEADLINE, dump_and_kill, (token,)))
        timers[-1].start()
        processes.append(process)
        files.append(errors)
        return Launched(process, token, errors)

    yield launched
    for timer in timers:
        timer.cancel()
    for token in tokens:
        end_marked(token)
    for process in processes:
        if process.stdout is not None:
            process.stdout.close()
        process.wait(DEADLINE)
    if late:
        pytest.fail("\n".join([f"a launch did not end within {DEADLINE} s:", *(file.read_text() for file in files)]))


@pytest.fixture
def script(tmp_path):
    """A function that writes a Python script for ranks, with some names ready for use; its path."""

    def script(text):
        path = tmp_path / "ranks.py"
        path.write_text("import os, signal, subprocess, sys, time\nrank = int(os.environ['HOROVOD_RANK'])\n" + text)
        return path

    return script
