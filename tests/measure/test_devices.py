"""What the devices are asked, with a TensorFlow that is faked, or real in a fresh process."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tfperf.measure import devices, measure


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    """Load a TensorFlow with the given devices."""

    def load(kinds: str, synchronous: bool = True, peaks: tuple[int, ...] = ()) -> SimpleNamespace:
        calls: list[str] = []
        physical = [SimpleNamespace(device_type=kind, name=f"/{kind}:{i}") for i, kind in enumerate(kinds.split())]
        experimental = SimpleNamespace(
            get_synchronous_execution=lambda: synchronous,
            get_device_details=lambda device: {"device_name": "Big GPU"} if device.device_type == "GPU" else {},
            reset_memory_stats=lambda name: calls.append(f"reset {name}"),
            get_memory_info=lambda name: {"peak": peaks[int(name[-1])], "current": 0},
        )
        config = SimpleNamespace(
            experimental=experimental,
            list_physical_devices=lambda: physical,
            list_logical_devices=lambda kind: [SimpleNamespace(name=f"/{kind}:{i}") for i in range(len(peaks))],
        )
        sync = SimpleNamespace(experimental=SimpleNamespace(sync_devices=lambda: calls.append("sync")))
        tensorflow = SimpleNamespace(config=config, test=sync, calls=calls)
        monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
        return tensorflow

    return load


def test_without_tensorflow_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert devices.device_synchronizer() is devices._nothing
    assert devices.peak_device_memory() is None
    assert devices.accelerator_names() == ()
    devices.reset_peak_device_memory()
    assert "tensorflow" not in sys.modules


def test_a_tensorflow_half_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    assert devices.device_synchronizer() is devices._nothing


@pytest.mark.parametrize(
    ("kinds", "synchronous", "waits"),
    [("CPU", True, False), ("CPU", False, True), ("CPU GPU", True, True), ("CPU TPU", True, True)],
)
def test_who_is_waited_for(pretend, kinds: str, synchronous: bool, waits: bool) -> None:
    tensorflow = pretend(kinds, synchronous)
    devices.wait_for_devices()
    assert tensorflow.calls == (["sync"] if waits else [])


def test_device_memory_is_the_most_on_any_one_gpu(pretend) -> None:
    tensorflow = pretend("CPU GPU GPU", peaks=(10, 30))
    assert devices.peak_device_memory() == 30
    devices.reset_peak_device_memory()
    assert tensorflow.calls == ["reset /GPU:0", "reset /GPU:1"]
    pretend("CPU")
    assert devices.peak_device_memory() is None


def test_accelerators_by_their_makers_names(pretend) -> None:
    pretend("CPU GPU TPU")
    assert devices.accelerator_names() == ("Big GPU", "/TPU:2")


def test_measure_finds_the_wait_after_the_first_call(pretend, fake) -> None:
    # The first call is what loads TensorFlow; from then on the device must be waited for.
    machine = fake.FakeMachine(read_cost=1e-7)
    device = fake.FakeDevice(machine)
    launch = device.work(0.005)

    def work() -> None:
        if not hasattr(sys.modules.get("tensorflow"), "calls"):
            pretend("CPU GPU").test.experimental.sync_devices = device.synchronize
        launch()

    result = measure(work, clock=machine.clock)
    assert result.first_call_seconds == pytest.approx(0.005, rel=0.01)
    assert result.median == pytest.approx(0.005, rel=0.01)


def test_importing_the_room_imports_no_tensorflow() -> None:
    program = (
        "import sys, tfperf.measure, tfperf.measure.results, tfperf.measure.regression\n"
        "tfperf.measure.Environment.here()\n"
        "tfperf.measure.compare({'a': int, 'b': int}, time_limit=0.01)\n"
        "print(*{'tensorflow', 'keras'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_real_tensorflow(run_python) -> None:
    answers = run_python(
        "import tensorflow as tf\n"
        "from tfperf.measure import Benchmark, devices\n"
        # Once the runtime has started, its threads can no longer be set; a block must not start it.
        "with Benchmark('block'):\n"
        "    tf.config.threading.set_intra_op_parallelism_threads(1)\n"
        "print(devices.device_synchronizer() is devices._nothing, devices.peak_device_memory())\n"
        "tf.config.experimental.set_synchronous_execution(False)\n"
        "print(devices.device_synchronizer() is tf.test.experimental.sync_devices)\n"
        "devices.wait_for_devices()\n",
        CUDA_VISIBLE_DEVICES="-1",
    )
    assert answers.split()[-3:] == ["True", "None", "True"]
