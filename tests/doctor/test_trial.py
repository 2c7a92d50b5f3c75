"""TensorFlow's process: what it says, how it dies, that it hangs, and that it is always gone afterwards."""

import time
from pathlib import Path

import psutil
import pytest

from tfperf.doctor import probe
from tfperf.doctor.trial import Report, Trial
from tfperf.processes import Patience


def report_of(trial):
    with trial as running:
        return running.report()


def test_what_the_probe_prints_is_the_report(trial_of, printed):
    report = report_of(trial_of(printed(tensorflow={"version": "2"}, keras={"error": "E: no"}, gpus={}, xla={"x": 1})))
    assert report == Report(
        {"tensorflow": {"version": "2"}, "keras": {"error": "E: no"}, "gpus": {}, "xla": {"x": 1}}, end=""
    )
    assert [report.error(step) for step in probe.STEPS] == ["", "E: no", "", ""]


def test_lines_that_are_no_report_are_passed_over(trial_of, printed):
    noise = ['print("hello"); print("[1]"); print("7"); print("{}"); print("null")', r'os.write(1, b"\xff\xfe\n")']
    assert report_of(trial_of(*noise, printed(keras={"version": "3"}))).steps == {"keras": {"version": "3"}}


@pytest.mark.parametrize(
    ("name", "words"),
    [("SIGSEGV", ""), ("SIGILL", "an illegal instruction"), ("SIGKILL", "memory runs out"), ("SIGABRT", "")],
)
def test_a_crash_is_told_with_its_last_words(trial_of, printed, name, words):
    lines = (
        printed(tensorflow={"version": "2"}),
        r"sys.stderr.write('before\nlast \x1b[2J[bold]\n\n'); sys.stderr.flush()",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        f"os.kill(os.getpid(), signal.{name})",
    )
    report = report_of(trial_of(*lines))
    assert report.error("tensorflow") == ""
    assert f"its process was ended by {name}" in report.error("keras")
    assert words in report.error("keras")
    assert report.error("keras").endswith("its last words: last \\x1b[2J[bold]")
    assert report.error("gpus") == report.error("xla") == "not tried, because keras failed"
    assert [report.was_tried(step) for step in probe.STEPS] == [True, True, False, False]


def test_a_step_that_fails_does_not_take_the_blame_for_a_later_crash(well):
    report = well("its process was ended by SIGSEGV", keras={"error": "ImportError: x"}, xla=None)
    assert report.error("keras") == "ImportError: x"
    assert report.error("xla") == "its process was ended by SIGSEGV"
    assert report.was_tried("xla")


def test_without_tensorflow_nothing_else_is_tried(trial_of, printed):
    report = report_of(trial_of(printed(tensorflow={"error": "ImportError: x"})))
    assert report.error("tensorflow") == "ImportError: x"
    assert report.error("xla") == "not tried, because tensorflow failed"


def test_an_exit_code_is_told(trial_of):
    assert report_of(trial_of("sys.exit('what happened')")).error("tensorflow") == (
        "its process ended with exit code 1; its last words: what happened"
    )


def test_a_signal_without_a_name_is_a_number(trial_of):
    assert "signal 40" in report_of(trial_of("os.kill(os.getpid(), 40)")).end


def test_silence_is_told(trial_of):
    assert report_of(trial_of("pass")).error("tensorflow") == "its process said nothing of it"


def test_an_interpreter_that_is_not_there_is_told(tmp_path):
    report = report_of(Trial([str(tmp_path / "no python")]))
    assert report.error("tensorflow").startswith("no process can be started: ")
    assert report.error("xla") == "not tried, because tensorflow failed"


HANG = "time.sleep(600)"
CHILD = "import subprocess; child = subprocess.Popen(['/bin/sleep', '600'])"


def ended(pids, deadline=30.0):
    """Whether the processes are gone, or dead and just not yet reaped by whoever inherited them."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return True
        psutil.wait_procs(alive, timeout=0.05)
    return False


def pids_in(file, number, deadline=60.0):
    """The process numbers that a fake wrote into a file, once they are all there."""
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        pids = file.read_text().split() if file.exists() else []
        if len(pids) == number:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError("the fake did not start")


def telling(file):
    """Lines of Python that start a child and write both process numbers to a file, whole."""
    return (
        CHILD,
        f"open({str(file) + '.part'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')",
        f"os.rename({str(file) + '.part'!r}, {str(file)!r})",
    )


def test_a_hang_ends_at_the_deadline_and_what_was_said_before_is_kept(trial_of, printed, tmp_path):
    lines = (printed(tensorflow={"version": "2"}), *telling(tmp_path / "pids"), HANG)
    with trial_of(*lines, deadline=600.0) as running:
        pids = pids_in(tmp_path / "pids", 2)
        running._patience = Patience(0.0)
        report = running.report()
    assert report.error("tensorflow") == ""
    assert report.error("keras") == "it did not finish within 600 s and was ended"
    assert ended(pids)


def test_the_deadline_counts_from_the_start(trial_of):
    with trial_of(HANG, deadline=1.0) as running:
        time.sleep(0.1)
        assert running._patience.left() <= 0.9
        assert "did not finish within 1 s" in running.report().error("tensorflow")


def test_a_process_that_ignores_every_request_ends_too(trial_of):
    lines = ("for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)", HANG)
    assert "did not finish" in report_of(trial_of(*lines, deadline=2.0)).error("tensorflow")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_interrupts_the_doctor_ends_the_process_group(trial_of, tmp_path, interruption):
    trial = trial_of(*telling(tmp_path / "pids"), HANG, deadline=600.0)

    def interrupted():
        with trial:
            pids_in(tmp_path / "pids", 2)
            raise interruption

    with pytest.raises(interruption):
        interrupted()
    assert ended(pids_in(tmp_path / "pids", 2))


def test_a_trial_nobody_waits_for_leaves_nothing(trial_of):
    with trial_of("pass") as running:
        pass
    assert ended([running._process.pid])


def test_much_output_does_not_block(trial_of, printed):
    report = report_of(trial_of("sys.stderr.write('x' * 2_000_000)", "print('y' * 2_000_000)", printed(xla={})))
    assert report.steps == {"xla": {}}


def test_the_process_ends_itself_when_the_doctor_was_killed(tmp_path, monkeypatch):
    """The probe sets its own alarm, which ends even a process that hangs in native code."""
    code = "import os, signal\nraise ValueError(f'{signal.alarm(0)} {signal.getsignal(signal.SIGALRM)!r}')"
    (tmp_path / "tensorflow.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    left, action = report_of(Trial(deadline=1000.0)).error("tensorflow").removeprefix("ValueError: ").split(" ", 1)
    assert 900 < int(left) <= 1010  # a little later than the doctor's own deadline
    assert "SIG_DFL" in action


def test_a_file_in_the_working_folder_is_not_taken_for_a_package(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')")
    monkeypatch.chdir(tmp_path)
    trial = Trial()
    trial._command = [*trial._command[:2], "-c", 'import json, sys; print(\'{"step": "x"}\')']
    assert report_of(trial) == Report({"x": {}})


def test_packages_that_fail_to_import_are_told_in_their_own_words(tmp_path, monkeypatch):
    """The real probe, with a broken TensorFlow on the path."""
    (tmp_path / "tensorflow.py").write_text(
        "print('{\"step\": \"not the probe\"}', flush=True)\nraise TypeError('Descriptors [bold] cannot')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = report_of(Trial())
    assert report.error("tensorflow") == "TypeError: Descriptors [bold] cannot"
    assert report.end == ""
    assert list(report.steps) == ["tensorflow"]


def test_the_probe_knows_a_tensorflow_of_this_kind(tmp_path, monkeypatch, printed):
    """The real probe, with a TensorFlow that crashes when XLA compiles."""
    (tmp_path / "tensorflow.py").write_text(
        "import os, types\n"
        "__version__ = '9.9'\n"
        "sysconfig = types.SimpleNamespace(get_build_info=lambda: {'is_cuda_build': False})\n"
        "gpu = types.SimpleNamespace(name='/physical_device:GPU:0')\n"
        "details = {'device_name': '[red]Card', 'compute_capability': (9, 0)}\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [gpu],\n"
        "    experimental=types.SimpleNamespace(get_device_details=lambda device: details))\n"
        "function = lambda *a, **k: os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "keras.py").write_text(
        "import types\n__version__ = '3'\nbackend = types.SimpleNamespace(backend=lambda: 'jax')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = report_of(Trial())
    assert report.steps == {
        "tensorflow": {
            "version": "9.9", "cuda": False, "cuda_version": None, "cudnn_version": None, "onednn": None,
        },
        "keras": {"version": "3", "backend": "jax"},
        "gpus": {"gpus": [{"name": "[red]Card", "compute_capability": "9.0"}]},
    }  # fmt: skip
    assert "SIGKILL" in report.error("xla")


def test_an_xla_that_computes_something_else_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text(
        "import types\n"
        "__version__ = '9.9'\n"
        "sysconfig = types.SimpleNamespace(get_build_info=lambda: {'is_cuda_build': False})\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [])\n"
        "constant = list\n"
        "function = lambda f, **options: lambda x: 16.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "expected 17" in report_of(Trial()).error("xla")


def test_the_real_tensorflow_passes_every_step():
    report = report_of(Trial())
    assert report.end == ""
    assert [report.error(step) for step in probe.STEPS] == [""] * 4
    assert report.steps["keras"]["backend"] == "tensorflow"
    assert Path(probe.__file__).name == "probe.py"
