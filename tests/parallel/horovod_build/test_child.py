"""A long command that never outlives its caller."""

import io
import os
import sys
import time

import psutil
import pytest

from tfperf.parallel.horovod_build import child
from tfperf.parallel.horovod_build.child import follow

WITH_CHILDREN = (
    "import os, signal, subprocess, sys, time\n"
    "if 'stubborn' in sys.argv: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "try:\n    print(os.getpid(), other.pid, flush=True)\n    time.sleep(600)\n"
    "finally:\n    print('restored', flush=True)\n"
)


def run(code, *arguments, on_line=lambda line: None, log=None, **environment):
    log = log or io.BytesIO()
    return follow([sys.executable, "-c", code, *arguments], os.environ | environment, log, on_line)


def interrupting(numbers):
    """An on_line that plays Ctrl-C as soon as the command's processes have told their numbers."""

    def on_line(line):
        numbers.extend(int(word) for word in line.split())
        raise KeyboardInterrupt

    return on_line


def are_gone(numbers):
    patience = time.monotonic() + 20
    while any(runs(number) for number in numbers):
        assert time.monotonic() < patience, f"one of {numbers} still runs"
        time.sleep(0.05)
    return True


def runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_each_line_is_passed_on_and_logged():
    log, lines = io.BytesIO(), []
    code = "import os, sys; print('one'); sys.stdout.flush(); print(os.environ['X'], file=sys.stderr); sys.exit(7)"
    assert run(code, on_line=lines.append, log=log, X="two") == 7
    assert lines == ["one", "two"]
    assert log.getvalue() == b"one\ntwo\n"


def test_bytes_that_are_no_text_do_no_harm():
    lines = []
    run(r"import sys; sys.stdout.buffer.write(b'a\xffb\n')", on_line=lines.append)
    assert lines == ["a\N{REPLACEMENT CHARACTER}b"]


def test_it_is_no_part_of_the_terminal_s_group():
    lines = []
    run("import os; print(os.getpgid(0) == os.getpid())", on_line=lines.append)
    assert lines == ["True"]


def test_ctrl_c_ends_it_with_its_children_after_it_has_restored():
    numbers, log = [], io.BytesIO()
    with pytest.raises(KeyboardInterrupt):
        run(WITH_CHILDREN, on_line=interrupting(numbers), log=log)
    assert len(numbers) == 2
    assert are_gone(numbers)


def test_what_does_not_heed_sigint_is_killed(monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    numbers = []
    with pytest.raises(KeyboardInterrupt):
        run(WITH_CHILDREN, "stubborn", on_line=interrupting(numbers))
    assert are_gone(numbers)


def test_it_gets_the_time_to_restore(tmp_path):
    numbers = []
    code = WITH_CHILDREN.replace("print('restored', flush=True)", "open(sys.argv[1], 'w').close()")
    with pytest.raises(KeyboardInterrupt):
        run(code, str(tmp_path / "restored"), on_line=interrupting(numbers))
    assert (tmp_path / "restored").exists()


def test_a_second_ctrl_c_does_not_spare_it(monkeypatch):
    numbers = []
    real = child.ChildProcess.interrupt

    def interrupt(process):
        real(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(child.ChildProcess, "interrupt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(WITH_CHILDREN, "stubborn", on_line=interrupting(numbers))
    assert are_gone(numbers)
