"""TensorFlow's process: what it says, how it dies, that it is gone afterwards; and what its report means."""

import json
import time

import psutil
import pytest

from tfperf.doctor import State, probe, tensorflow
from tfperf.doctor.tensorflow import ProbeReport, examine_gpus, examine_tensorflow, probing
from tfperf.processes import Patience

H100 = {"name": "NVIDIA H100", "compute_capability": "9.0"}
SMI = 'echo "NVIDIA H100, 81559 MiB, 550.54"'


def report_of(running):
    with running as report:
        return report()


def test_what_the_probe_prints_is_the_report(probing_of, printed):
    steps = {"tensorflow": {"version": "2"}, "keras": {"error": "E: no"}, "gpus": {}, "xla": {"x": 1}}
    report = report_of(probing_of(printed(**steps)))
    assert report == ProbeReport(steps, end="")
    assert [report.error(step) for step in probe.STEPS] == ["", "E: no", "", ""]


def test_lines_that_are_no_report_are_passed_over(probing_of, printed):
    noise = ['print("hello"); print("[1]"); print("7"); print("{}"); print("null")', r'os.write(1, b"\xff\xfe\n")']
    assert report_of(probing_of(*noise, printed(keras={"version": "3"}))).steps == {"keras": {"version": "3"}}


@pytest.mark.parametrize(
    ("name", "words"),
    [("SIGSEGV", ""), ("SIGILL", "an illegal instruction"), ("SIGKILL", "memory runs out"), ("SIGABRT", "")],
)
def test_a_crash_is_told_with_its_last_words(probing_of, printed, name, words):
    lines = (
        printed(tensorflow={"version": "2"}),
        r"sys.stderr.write('before\nlast \x1b[2J[bold]\n\n'); sys.stderr.flush()",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        f"os.kill(os.getpid(), signal.{name})",
    )
    report = report_of(probing_of(*lines))
    assert report.error("tensorflow") == ""
    assert f"its process was ended by {name}" in report.error("keras")
    assert words in report.error("keras")
    assert report.error("keras").endswith("its last words: last [bold]")
    assert report.error("gpus") == report.error("xla") == "not tried, because keras failed"
    assert [report.was_tried(step) for step in probe.STEPS] == [True, True, False, False]


def test_a_step_that_fails_does_not_take_the_blame_for_a_later_crash(well):
    report = well("its process was ended by SIGSEGV", keras={"error": "ImportError: x"}, xla=None)
    assert report.error("keras") == "ImportError: x"
    assert report.error("xla") == "its process was ended by SIGSEGV"
    assert report.was_tried("xla")


def test_without_tensorflow_nothing_else_is_tried(probing_of, printed):
    report = report_of(probing_of(printed(tensorflow={"error": "ImportError: x"})))
    assert report.error("tensorflow") == "ImportError: x"
    assert report.error("xla") == "not tried, because tensorflow failed"


def test_an_exit_code_is_told(probing_of):
    assert report_of(probing_of("sys.exit('what happened')")).error("tensorflow") == (
        "its process ended with exit code 1; its last words: what happened"
    )


def test_a_signal_without_a_name_is_a_number(probing_of):
    assert "signal 40" in report_of(probing_of("os.kill(os.getpid(), 40)")).end


def test_silence_is_told(probing_of):
    assert report_of(probing_of("pass")).error("tensorflow") == "its process said nothing of it"


def test_an_interpreter_that_is_not_there_is_told(tmp_path):
    report = report_of(probing([str(tmp_path / "no python")]))
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


def test_a_hang_that_ignores_every_request_ends_at_the_deadline_and_what_was_said_before_is_kept(
    probing_of, printed, tmp_path, monkeypatch
):
    limits = []
    monkeypatch.setattr(tensorflow, "Patience", lambda seconds: limits.append(seconds) or Patience(0.0))
    ignores = "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)"
    lines = (ignores, printed(tensorflow={"version": "2"}), *telling(tmp_path / "pids"), HANG)
    with probing_of(*lines, deadline=600.0) as report:
        pids = pids_in(tmp_path / "pids", 2)
        assert limits == [600.0], "the deadline counts from the start"
        told = report()
    assert told.error("tensorflow") == ""
    assert told.error("keras") == "it did not finish within 600 s and was ended"
    assert ended(pids)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_interrupts_the_doctor_ends_the_process_group(probing_of, tmp_path, interruption):
    def interrupted():
        with probing_of(*telling(tmp_path / "pids"), HANG, deadline=600.0):
            pids_in(tmp_path / "pids", 2)
            raise interruption

    with pytest.raises(interruption):
        interrupted()
    assert ended(pids_in(tmp_path / "pids", 2))


def test_much_output_does_not_block(probing_of, printed):
    report = report_of(probing_of("sys.stderr.write('x' * 2_000_000)", "print('y' * 2_000_000)", printed(xla={})))
    assert report.steps == {"xla": {}}


def test_the_process_ends_itself_when_the_doctor_was_killed(tmp_path, monkeypatch):
    """The probe sets its own alarm, which ends even a process that hangs in native code."""
    code = "import os, signal\nraise ValueError(f'{signal.alarm(0)} {signal.getsignal(signal.SIGALRM)!r}')"
    (tmp_path / "tensorflow.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    left, action = report_of(probing(deadline=1000.0)).error("tensorflow").removeprefix("ValueError: ").split(" ", 1)
    assert 900 < int(left) <= 1010  # a little later than the doctor's own deadline
    assert "SIG_DFL" in action


def test_a_file_in_the_working_folder_is_not_taken_for_a_package(tmp_path, monkeypatch):
    for name in ("json", "tensorflow"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong')")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "tensorflow.py").write_text("raise ValueError('right')")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.chdir(tmp_path)
    assert report_of(probing()) == ProbeReport({"tensorflow": {"error": "ValueError: right"}})


def test_packages_that_fail_to_import_are_told_in_their_own_words(tmp_path, monkeypatch):
    """The real probe, with a broken TensorFlow on the path."""
    (tmp_path / "tensorflow.py").write_text(
        "print('{\"step\": \"not the probe\"}', flush=True)\nraise TypeError('Descriptors [bold] cannot')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = report_of(probing())
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
    report = report_of(probing())
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
    assert "expected 17" in report_of(probing()).error("xla")


@pytest.fixture(autouse=True)
def _no_variables_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def states(report):
    return [finding.state for finding in examine_tensorflow(report)]


def test_good_health_is_three_times_ok(well):
    tf, keras, xla = examine_tensorflow(well())
    assert tf.found == "2.21.0 imports, built for CUDA 12.5.1 and cuDNN 9, oneDNN on"
    assert keras.found == "3.15.1, backend tensorflow"
    assert xla.found == "compiled and ran a function on CPU:0"
    assert states(well()) == [State.OK] * 3


@pytest.mark.parametrize(("onednn", "words"), [(True, "oneDNN on"), (False, "oneDNN off"), (None, "oneDNN not told")])
def test_a_build_without_cuda_and_onednn_are_told(well, onednn, words):
    found = {"version": "2.21.0", "cuda": False, "cuda_version": None, "cudnn_version": None, "onednn": onednn}
    assert examine_tensorflow(well(tensorflow=found))[0].found == f"2.21.0 imports, built without CUDA, {words}"


def test_a_tensorflow_that_is_not_there_is_missing():
    report = ProbeReport({"tensorflow": {"error": "ModuleNotFoundError: No module named 'tensorflow'"}})
    tf, keras, xla = examine_tensorflow(report)
    assert (tf.state, keras.state, xla.state) == (State.MISSING, State.NOTE, State.NOTE)
    assert "install 'tensorflow<" in tf.mend
    assert "force" not in tf.mend
    assert keras.found == "not tried, because tensorflow failed"


def test_a_tensorflow_that_does_not_import_is_installed_anew():
    tf, *_ = examine_tensorflow(
        ProbeReport({"tensorflow": {"error": "TypeError: Descriptors cannot be created directly"}})
    )
    assert tf.state is State.UNFIT
    assert "--force-reinstall 'tensorflow<" in tf.mend


def test_a_crash_is_unfit_and_no_command_is_made_up_for_it():
    tf, *_ = examine_tensorflow(ProbeReport({}, "its process was ended by SIGILL, an illegal instruction"))
    assert (tf.state, tf.mend) == (State.UNFIT, "")
    assert "SIGILL" in tf.found


@pytest.mark.parametrize("end", ["its process was ended by SIGSEGV", "it did not finish within 120 s and was ended"])
def test_an_xla_that_crashes_or_hangs_is_unfit(well, end):
    tf, keras, xla = examine_tensorflow(well(end, xla=None))
    assert (tf.state, keras.state, xla.state) == (State.OK, State.OK, State.UNFIT)
    assert xla.found == end


def test_another_backend_is_unfit_and_says_who_chose_it(well, monkeypatch, tmp_path):
    report = well(keras={"version": "3.15.1", "backend": "jax"})
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    _, keras, _ = examine_tensorflow(report)
    assert keras.state is State.UNFIT
    assert str(tmp_path / "keras.json") in keras.found
    assert keras.mend == "export KERAS_BACKEND=tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert "variable KERAS_BACKEND chooses" in examine_tensorflow(report)[1].found


def test_a_backend_that_cannot_be_imported_is_the_backends_fault(well, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "[bold]torch")
    _, keras, _ = examine_tensorflow(well(keras={"error": "ModuleNotFoundError: No module named 'torch'"}))
    assert keras.state is State.UNFIT
    assert keras.found.endswith("the variable KERAS_BACKEND chooses [bold]torch")
    assert keras.mend == "export KERAS_BACKEND=tensorflow"


def test_a_broken_keras_is_installed_anew(well):
    _, keras, _ = examine_tensorflow(well(keras={"error": "AttributeError: x"}))
    assert keras.state is State.UNFIT
    assert "--force-reinstall 'keras<" in keras.mend


@pytest.mark.parametrize("content", ["{", "[]", "7", "{}", '{"backend": null}', None])
def test_a_broken_file_of_keras_chooses_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "keras.json").write_text(content)
    assert tensorflow._chosen_backend() == (None, "")


@pytest.fixture
def machine(tools, tmp_path):
    """A function that makes the root folder of a machine without nvidia-smi: files below it -> their content."""

    def machine(**files):
        root = tmp_path / "root"
        root.mkdir()
        for name, content in files.items():
            path = root / name.replace("__", "/").replace("_colon_", ":")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return root

    return machine


def test_no_gpu_and_no_card_is_a_note(well, machine):
    (finding,) = examine_gpus(well(), root=machine())
    assert finding.state is State.NOTE
    assert "runs on the CPU" in finding.found
    assert finding.mend == ""


def test_gpus_are_named_with_what_the_driver_says_of_them(well, machine, tools):
    tools("nvidia-smi", SMI)
    (finding,) = examine_gpus(well(gpus={"gpus": [H100]}), root=machine())
    assert finding.state is State.OK
    assert finding.found == (
        "TensorFlow sees 1 GPU: NVIDIA H100 (compute capability 9.0); "
        "the machine has 1 NVIDIA card: NVIDIA H100, 81559 MiB, 550.54"
    )


def test_a_gpu_of_another_maker_needs_no_card_of_nvidia(well, machine):
    gpu = {"name": "AMD Instinct", "compute_capability": None}
    (finding,) = examine_gpus(well(gpus={"gpus": [gpu]}), root=machine())
    assert (finding.state, finding.found) == (State.OK, "TensorFlow sees 1 GPU: AMD Instinct")


def test_a_card_that_tensorflow_does_not_see_is_told_with_the_way_to_mend_it(well, machine, tools):
    tools("nvidia-smi", SMI)
    (finding,) = examine_gpus(well(), root=machine())
    assert finding.state is State.NOTE
    assert "sees none, but the machine has 1 NVIDIA card: NVIDIA H100" in finding.found
    assert finding.mend.endswith("install 'tensorflow[and-cuda]==2.21.0'")


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found", "echo Failed to initialize NVML; exit 0"])
def test_the_driver_is_asked_where_its_tool_fails(well, machine, tools, script):
    tools("nvidia-smi", script)
    root = machine(
        proc__driver__nvidia__gpus__0__information="Model: \t\t [bold]A100\nIRQ: 1\n",
        proc__driver__nvidia__gpus__1__information="IRQ: 2\n",
        dev__nvidia0="",
        dev__nvidiactl="",
    )
    (finding,) = examine_gpus(well(), root=root)
    assert "has 2 NVIDIA cards: [bold]A100; of unknown model" in finding.found
    assert "tensorflow[and-cuda]" in finding.mend


def test_a_device_file_alone_is_a_card(well, machine):
    (finding,) = examine_gpus(well(), root=machine(dev__nvidia0="", dev__nvidiactl=""))
    assert "has 1 NVIDIA card: /dev/nvidia0" in finding.found


def test_a_container_without_the_hosts_cards_is_not_told_to_install(well, machine):
    (finding,) = examine_gpus(well(), root=machine(proc__driver__nvidia__gpus__0__information="Model: A100\n"))
    assert "this container was started without them" in finding.found
    assert finding.mend == ""


@pytest.mark.parametrize(
    ("visible", "seen", "hidden"),
    [("", [], True), ("-1", [], True), ("0", [], False), ("0", [H100], True), (None, [H100], False)],
)
def test_a_variable_that_hides_cards_is_named(well, machine, tools, monkeypatch, visible, seen, hidden):
    tools("nvidia-smi", f"{SMI}; {SMI}")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (finding,) = examine_gpus(well(gpus={"gpus": seen}), root=machine())
    assert finding.state is State.NOTE
    assert (finding.mend == "unset CUDA_VISIBLE_DEVICES") == hidden
    assert (f"CUDA_VISIBLE_DEVICES is {visible!r}" in finding.found) == hidden


@pytest.mark.parametrize(
    ("vendor", "kind", "told"),
    [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x8086", "0x030000", False)],
)
def test_a_card_without_a_driver_is_told(well, machine, vendor, kind, told):
    root = machine(sys__bus__pci__devices__0__vendor=vendor + "\n", sys__bus__pci__devices__0__class=kind + "\n")
    (finding,) = examine_gpus(well(), root=root)
    assert ("no driver of NVIDIA's is loaded" in finding.found) == told


def test_where_tensorflow_fails_the_cards_are_told_all_the_same(machine, tools):
    tools("nvidia-smi", SMI)
    gpu, card = examine_gpus(ProbeReport({}, "its process was ended by SIGILL"), root=machine())
    assert (gpu.state, gpu.found) == (State.NOTE, "not tried, because tensorflow failed")
    assert "NVIDIA H100" in card.found


def test_a_crash_while_gpus_are_listed_is_unfit(well, machine):
    (gpu,) = examine_gpus(well("its process was ended by SIGSEGV", gpus=None, xla=None), root=machine())
    assert gpu.state is State.UNFIT


def test_a_driver_s_tool_that_hangs_is_ended(tools):
    before = {child.pid for child in psutil.Process().children()}
    tools("nvidia-smi", "exec /bin/sleep 600")
    assert tensorflow._nvidia_smi(timeout=0.5) == []
    assert {child.pid for child in psutil.Process().children()} <= before


def test_what_a_driver_s_tool_says_is_text_whatever_it_is(tools):
    tools("nvidia-smi", "printf '\\377, 1 MiB, 2\n'")
    assert tensorflow._nvidia_smi() == ["\ufffd, 1 MiB, 2"]
