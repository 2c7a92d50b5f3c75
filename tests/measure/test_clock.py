"""What reading the clock costs, and what devices are asked: of a faked TensorFlow, or a real one in a fresh process."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tfperf.measure import clock, environment, measure, memory
from tfperf.measure.clock import read_cost, wall_clock


def test_it_is_the_cost_of_one_reading(fake) -> None:
    machine = fake.FakeMachine(read_cost=3e-7)
    assert read_cost(machine.clock, fake.nothing) == pytest.approx(3e-7)


def test_it_includes_one_wait(fake) -> None:
    machine = fake.FakeMachine(read_cost=3e-7)
    # Of the two waits around a sample only the second lies between the readings.
    assert read_cost(machine.clock, machine.work(1e-5)) == pytest.approx(1.03e-5)


def test_an_interruption_is_no_cost(fake) -> None:
    machine, waits = fake.FakeMachine(read_cost=1e-7), itertools.count()

    def interrupted_now_and_then() -> None:
        machine.spend(0.01 if next(waits) % 5 == 0 else 0.0)

    assert read_cost(machine.clock, interrupted_now_and_then) == pytest.approx(1e-7)


def test_the_wall_clock_never_goes_backwards() -> None:
    readings = [wall_clock() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]


# ---------------------------------------------------------------- devices


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
    assert clock.device_synchronizer() is clock._nothing
    assert memory.peak_device_memory() is None
    assert environment.accelerator_names() == ()
    memory.reset_peak_device_memory()
    assert "tensorflow" not in sys.modules


def test_a_tensorflow_half_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    assert clock.device_synchronizer() is clock._nothing


@pytest.mark.parametrize(
    ("kinds", "synchronous", "waits"),
    [("CPU", True, False), ("CPU", False, True), ("CPU GPU", True, True), ("CPU TPU", True, True)],
)
def test_who_is_waited_for(pretend, kinds: str, synchronous: bool, waits: bool) -> None:
    tensorflow = pretend(kinds, synchronous)
    clock.wait_for_devices()
    assert tensorflow.calls == (["sync"] if waits else [])


def test_device_memory_is_the_most_on_any_one_gpu(pretend) -> None:
    tensorflow = pretend("CPU GPU GPU", peaks=(10, 30))
    assert memory.peak_device_memory() == 30
    memory.reset_peak_device_memory()
    assert tensorflow.calls == ["reset /GPU:0", "reset /GPU:1"]
    pretend("CPU")
    assert memory.peak_device_memory() is None


def test_accelerators_by_their_makers_names(pretend) -> None:
    pretend("CPU GPU TPU")
    assert environment.accelerator_names() == ("Big GPU", "/TPU:2")


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
        "from tfperf.measure import Benchmark, clock, memory\n"
        # Once the runtime has started, its threads can no longer be set; a block must not start it.
        "with Benchmark('block'):\n"
        "    tf.config.threading.set_intra_op_parallelism_threads(1)\n"
        "print(clock.device_synchronizer() is clock._nothing, memory.peak_device_memory())\n"
        "tf.config.experimental.set_synchronous_execution(False)\n"
        "print(clock.device_synchronizer() is tf.test.experimental.sync_devices)\n"
        "clock.wait_for_devices()\n",
        CUDA_VISIBLE_DEVICES="-1",
    )
    assert answers.split()[-3:] == ["True", "None", "True"]
