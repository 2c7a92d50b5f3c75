"""What a build's output says, how far it is, and that pip never outlives its caller."""

import os
import sys
import time

import psutil
import pytest
import rich

from tfperf.parallel.horovod_build.build_log import first_error, follow, showing_progress, step_of
from tfperf.processes import ChildProcess


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "  [ 12%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/common/linux.cc.o",
            (12, "linux.cc"),
        ),
        ("[100%] Linking CXX shared library /tmp/x/mpi_lib.cpython-311.so", (100, "mpi_lib.cpython-311.so")),
        ("  [ 70%] Linking CXX static library libgloo.a", (70, "libgloo")),
        ("  [ 70%] Built target gloo", None),
        ("  /tmp/x/gloo/allreduce.cc:443:10: warning: [ 3%] Building nothing", None),
        ("", None),
    ],
)
def test_make_s_steps_are_seen(line, step):
    assert step_of(line) == step


COMPILER = [
    "  In file included from /tmp/p/horovod_1/horovod/tensorflow/mpi_ops.cc:25:",
    "  /tmp/p/horovod_1/horovod/tensorflow/xla_mpi_ops.cc:28:10: fatal error: tensorflow/x.h: No such file",
    "  /tmp/p/horovod_1/horovod/tensorflow/xla_mpi_ops.cc:99:1: error: a later one",
    "  make[2]: *** [xla_mpi_ops.cc.o] Error 1",
    "  error: subprocess-exited-with-error",
    "  ERROR: Failed building wheel for horovod",
]


def test_the_first_of_the_compiler_comes_before_make_s_and_pip_s():
    assert first_error(COMPILER) == "xla_mpi_ops.cc:28:10: fatal error: tensorflow/x.h: No such file"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*COMPILER, "  /usr/bin/ld: final link failed: No space left on device"], "No space left on device"),
        (["g++: fatal error: Killed signal terminated program cc1plus", *COMPILER], "--jobs 1"),
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If"], "its SHA-256 differs"),
        (["  /usr/bin/ld: cannot find -lmpi: No such file", "collect2: error: ld returned 1 exit status"], "-lmpi"),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_52'", "error: x"], "compute_52"),
        (["/x/kernels.cu(12): error: identifier undefined", "ERROR: Failed"], "kernels.cu(12): error: identifier"),
        (["CMake Error at x.cmake:3 (message):", "  NCCL is not there", "ERROR: y"], "(message): NCCL is not there"),
        (
            ["WARNING: z", "ERROR: Could not find a version", "ERROR: No matching distribution"],
            "Could not find a version",
        ),
        (["something", "", "the end"], "the end"),
        ([], "it said nothing"),
    ],
)
def test_the_telling_line_is_found(lines, words):
    assert words in first_error(lines)
    assert "\n" not in first_error(lines)


def test_a_long_line_is_cut():
    assert len(first_error(["x.cc:1:1: error: " + "template<" * 500])) < 250


STEP = "  [{:3d}%] Building CXX object a/b/CMakeFiles/x.dir/file{}.cc.o"


def test_elsewhere_it_is_a_line_for_each_tenth(capsys):
    seconds = iter(range(0, 2000, 10))
    with showing_progress(terminal=False, clock=lambda: next(seconds)) as on_line:
        for percent in range(1, 101):
            on_line(STEP.format(percent, percent))
            on_line("  g++ -c file.cc")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(tenth) for tenth in range(10, 101, 10)]
    assert lines[0] == "   10 %    10 s  file10.cc"


def test_tenths_that_are_leapt_over_are_not_made_up(capsys):
    with showing_progress(terminal=False, clock=lambda: 0.0) as on_line:
        for percent in (5, 37, 38, 99):
            on_line(STEP.format(percent, percent))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["30", "90"]


def test_on_a_terminal_it_is_a_bar_that_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(rich, "_console", None)  # one that another test made knows of no terminal
    with showing_progress(terminal=True) as on_line:
        on_line(STEP.format(42, 7))
    out = capsys.readouterr().out
    assert "42%" in out
    assert "file7.cc" in out


WITH_CHILDREN = (
    "import os, signal, subprocess, sys, time\n"
    "if 'stubborn' in sys.argv: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "try:\n    print(os.getpid(), other.pid, flush=True)\n    while True: time.sleep(0.1)\n"
    "finally:\n    print('restored', flush=True)\n"
)


def run(code, *arguments, on_line=lambda line: None, grace=10.0, **environment):
    return follow([sys.executable, "-S", "-c", code, *arguments], os.environ | environment, on_line, grace)


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


def test_each_line_is_passed_on():
    lines = []
    code = "import os, sys; print('one'); sys.stdout.flush(); print(os.environ['X'], file=sys.stderr); sys.exit(7)"
    assert run(code, on_line=lines.append, X="two") == 7
    assert lines == ["one", "two"]


def test_bytes_that_are_no_text_do_no_harm():
    lines = []
    run(r"import sys; sys.stdout.buffer.write(b'a\xffb\n')", on_line=lines.append)
    assert lines == ["a\N{REPLACEMENT CHARACTER}b"]


def test_it_is_no_part_of_the_terminal_s_group():
    lines = []
    run("import os; print(os.getpgid(0) == os.getpid())", on_line=lines.append)
    assert lines == ["True"]


def test_what_does_not_heed_sigint_is_killed():
    numbers = []
    with pytest.raises(KeyboardInterrupt):
        run(WITH_CHILDREN, "stubborn", on_line=interrupting(numbers), grace=0.2)
    assert are_gone(numbers)


def test_ctrl_c_ends_it_with_its_children_after_it_has_restored(tmp_path):
    numbers = []
    code = WITH_CHILDREN.replace("print('restored', flush=True)", "open(sys.argv[1], 'w').close()")
    with pytest.raises(KeyboardInterrupt):
        run(code, str(tmp_path / "restored"), on_line=interrupting(numbers))
    assert len(numbers) == 2
    assert are_gone(numbers)
    assert (tmp_path / "restored").exists()


def test_a_second_ctrl_c_does_not_spare_it(monkeypatch):
    numbers = []
    real = ChildProcess.interrupt

    def interrupt(process):
        real(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChildProcess, "interrupt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(WITH_CHILDREN, "stubborn", on_line=interrupting(numbers))
    assert are_gone(numbers)
