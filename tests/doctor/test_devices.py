"""GPUs that TensorFlow sees, and those that it should see."""

import pytest

from tfperf.doctor import State, devices
from tfperf.doctor.trial import Report

H100 = {"name": "NVIDIA H100", "compute_capability": "9.0"}
SMI = 'echo "NVIDIA H100, 81559 MiB, 550.54"'


@pytest.fixture(autouse=True)
def _bare(tools, monkeypatch):
    """No nvidia-smi and no variable of this machine's own."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def machine(tmp_path):
    """A function that makes the root folder of a machine: files below it -> their content."""

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
    (finding,) = devices.look(well(), root=machine())
    assert finding.state is State.NOTE
    assert "runs on the CPU" in finding.found
    assert finding.mend == ""


def test_gpus_are_named_with_what_the_driver_says_of_them(well, machine, tools):
    tools("nvidia-smi", SMI)
    (finding,) = devices.look(well(gpus={"gpus": [H100]}), root=machine())
    assert finding.state is State.OK
    assert finding.found == (
        "TensorFlow sees 1 GPU: NVIDIA H100 (compute capability 9.0); "
        "the machine has 1 NVIDIA card: NVIDIA H100, 81559 MiB, 550.54"
    )


def test_a_gpu_of_another_maker_needs_no_card_of_nvidia(well, machine):
    gpu = {"name": "AMD Instinct", "compute_capability": None}
    (finding,) = devices.look(well(gpus={"gpus": [gpu]}), root=machine())
    assert (finding.state, finding.found) == (State.OK, "TensorFlow sees 1 GPU: AMD Instinct")


def test_a_card_that_tensorflow_does_not_see_is_told_with_the_way_to_mend_it(well, machine, tools):
    tools("nvidia-smi", SMI)
    (finding,) = devices.look(well(), root=machine())
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
    (finding,) = devices.look(well(), root=root)
    assert "has 2 NVIDIA cards: [bold]A100; of unknown model" in finding.found
    assert "tensorflow[and-cuda]" in finding.mend


def test_a_device_file_alone_is_a_card(well, machine):
    (finding,) = devices.look(well(), root=machine(dev__nvidia0="", dev__nvidiactl=""))
    assert "has 1 NVIDIA card: /dev/nvidia0" in finding.found


def test_a_container_without_the_hosts_cards_is_not_told_to_install(well, machine):
    (finding,) = devices.look(well(), root=machine(proc__driver__nvidia__gpus__0__information="Model: A100\n"))
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
    (finding,) = devices.look(well(gpus={"gpus": seen}), root=machine())
    assert finding.state is State.NOTE
    assert (finding.mend == "unset CUDA_VISIBLE_DEVICES") == hidden
    assert (f"CUDA_VISIBLE_DEVICES is {visible!r}" in finding.found) == hidden


@pytest.mark.parametrize(
    ("vendor", "kind", "told"),
    [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x8086", "0x030000", False)],
)
def test_a_card_without_a_driver_is_told(well, machine, vendor, kind, told):
    root = machine(sys__bus__pci__devices__0__vendor=vendor + "\n", sys__bus__pci__devices__0__class=kind + "\n")
    (finding,) = devices.look(well(), root=root)
    assert ("no driver of NVIDIA's is loaded" in finding.found) == told


def test_where_tensorflow_fails_the_cards_are_told_all_the_same(machine, tools):
    tools("nvidia-smi", SMI)
    gpu, card = devices.look(Report({}, "its process was ended by SIGILL"), root=machine())
    assert (gpu.state, gpu.found) == (State.NOTE, "not tried, because tensorflow failed")
    assert "NVIDIA H100" in card.found


def test_a_crash_while_gpus_are_listed_is_unfit(well, machine):
    (gpu,) = devices.look(well("its process was ended by SIGSEGV", gpus=None, xla=None), root=machine())
    assert gpu.state is State.UNFIT
