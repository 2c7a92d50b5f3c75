"""The cores that this process may use, and Ctrl-C where a shell started it in the background with SIGINT ignored."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfperf.system import restore_interrupts, thread_words, usable_cores

BARE = """
import time
from tfperf.system import restore_interrupts
restore_interrupts()
try:
    print("up", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal just before a wait does not end it
except KeyboardInterrupt:
    print("interrupted")
"""

COMMAND = """
from tfperf.cli.app import app, main

HANG = "import time\\nfor _ in range(600): time.sleep(0.1)"  # what interrupts a text has Python end by SIGINT

@app.command()
def hang():
    print("up", flush=True)
    exec(HANG)

main(["hang"])
"""

RECIPE = '''"""Why?

Source: none
Claim: c
Holds not: h
Needs: n
Time: t
Shows: f
Try: --batch 2: slower.
"""
import time
from tfperf import Recipe

def f(): ...

def main(recipe):
    print("up", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal just before a wait does not end it

Recipe(__file__, batch=1).run(main)
'''


@pytest.mark.parametrize(
    ("code", "ended", "words"),
    [
        (BARE, 0, "interrupted\n"),
        (COMMAND, 130, "tfperf: interrupted\n"),
        (RECIPE, 130, "program: interrupted; nothing was written\n"),
    ],
    ids=["alone", "tfperf", "recipe"],
)
def test_what_was_started_in_the_background_can_be_interrupted(tmp_path, code, ended, words):
    (tmp_path / "program.py").write_text(code)
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "program"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            while process.stdout.readline() not in ("up\n", ""):
                pass
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert (process.returncode, rest) == (ended, words)


def test_a_handler_of_ones_own_stays():
    before = signal.getsignal(signal.SIGINT)
    restore_interrupts()
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 4), ("150000 100000", 2), ("900000 100000", 4), ("1000 100000", 1), (None, 4)]
)
def test_cores_are_those_of_the_mask_and_the_quota(monkeypatch, quota, cores):
    def read_text(_, **__):
        if quota is None:
            raise FileNotFoundError
        return f"{quota}\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(Path, "read_text", read_text)
    assert usable_cores() == cores


def test_threads_in_words():
    assert [thread_words(count) for count in (None, 1, 2)] == ["threads by default", "1 thread", "2 threads"]
