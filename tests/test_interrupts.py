"""Ctrl-C ends what a shell started in the background with SIGINT ignored, as it ends what it started in front."""

import signal
import subprocess
import sys

import pytest

from tfperf.interrupts import restore_interrupts

BARE = """
import time
from tfperf.interrupts import restore_interrupts
restore_interrupts()
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""

COMMAND = """
import time
from tfperf.cli.app import app, main

@app.command()
def hang():
    print("up", flush=True)
    time.sleep(60)

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
    time.sleep(60)

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
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "program.py"]
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
