"""`tfperf explain`: what it prints and writes, and that bad input is one line and writes nothing."""

import subprocess
import sys

import pytest

from tfperf.cli import main
from tfperf.explaining.explanation import Explanation
from tfperf.measure.results import read_document

SECONDS = 240
"""For a process to end, on a machine that does much else."""

DRIVER = """
import sys
from tfperf.importing import load_tensorflow
load_tensorflow()
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate
from tfperf.measure import Environment
import tfperf.explaining.explaining as explaining
import tfperf.explaining.machine as machine
import tfperf.hardware.kernels.times as kernel_times
explaining.TIME_LIMIT = 0.5
machine.ceilings_of_this_machine = lambda *_, **__: Ceilings(
    environment=Environment.here(),
    products=(ProductRate(dtype="float32", threads=1, size=1024, flops_per_second=1e11),),
    bandwidths=tuple(
        Bandwidth(threads=1, working_set=size, bytes_per_second=1e10, kind=kind)
        for kind in ("pointwise", "weights") for size in (2**14, 2**29)
    ),
    calls=tuple(
        CallCost(name=name, seconds=1e-6)
        for name in ("python call", "eager op", "tf.function call", "graph op", "model call")
    ),
    disk_read_bytes_per_second=None, loopback_seconds=None, loopback_bytes_per_second=None,
)
kernel_times.alone = lambda *_: 1e-6
from tfperf.cli import main
main(["explain", *sys.argv[1:]])
"""
"""`tfperf explain` as it is, on a machine made up of round numbers."""


@pytest.fixture
def explained(tmp_path, monkeypatch):
    """A function that runs it in a process of its own, which never outlives the test."""
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def explained(*arguments):
        command = [sys.executable, "-c", DRIVER, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)

    return explained


def test_it_prints_what_it_found_and_writes_what_was_asked_for(explained, tmp_path):
    files = ["--json", "deep/e.json", "--plot", "r.svg", "--report", "e.html"]
    told = explained("mlp", "--batch", "1,2", "--threads", "1", "--try", *files)
    assert told.returncode == 0, told.stderr
    assert "so far: graph: " in told.stderr
    lines = told.stdout.splitlines()
    assert lines[1].startswith("- eager: ")
    assert "overhead-bound" in told.stdout
    assert "hidden_1" in told.stdout
    assert "would help: hybridize" in told.stdout
    assert "XLA compiles" in told.stdout
    assert "traced it 2 times for 2 batch sizes" in told.stdout
    assert "written: deep/e.json, r.svg, e.html" in told.stdout
    found = read_document(tmp_path / "deep" / "e.json", Explanation)
    assert [one.batch for one in found.batches] == [1, 2]
    assert found.threads == 1
    assert any(one.measured for one in found.batches[0].techniques)
    assert (tmp_path / "r.svg").read_bytes().startswith(b"<?xml")
    assert "<h2>What it waits for</h2>" in (tmp_path / "e.html").read_text()


def test_the_help_loads_no_tensorflow():
    look = (
        "import sys; from tfperf.cli import main\ntry: main(['explain', '--help'])\nfinally: print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert "Say what a model waits for" in done.stdout
    for name in ("tensorflow", "keras", "numpy"):
        assert f"'{name}'" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "Received: nonsense"),
        (["mlp", "--batch", "0"], "--batch"),
        (["mlp", "--batch", "1:"], "expected --batch as 1,8,32 or 1:256"),
        (["mlp", "--threads", "0"], "--threads"),
        (["mlp", "--seed", "-1"], "--seed"),
        (["mlp", "--signature", "other"], "other"),
        (["mlp", "--json", "{folder}"], "--json: expected a file"),
        (["mlp", "--json", "{file}/e.json"], "--json: cannot write"),
        (["mlp", "--plot", "r.pdf"], "r.pdf"),
        (["mlp", "--plot", "{file}/r.png"], "cannot write the plot"),
        (["mlp", "--report", "r.md"], "r.md"),
        (["mlp", "--report", "{file}/r.html"], "cannot write the report"),
        (["none.py:build"], "none.py does not exist"),
        (["none.keras"], "none.keras does not exist"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    filled = [argument.format(folder=tmp_path, file=tmp_path / "file") for argument in arguments]
    capfd.readouterr()  # of other tests' TensorFlow
    with pytest.raises(SystemExit) as stopped:
        main(["explain", *filled])
    told = capfd.readouterr()
    assert stopped.value.code == 2
    assert told.out == ""
    assert words in told.err
    assert len(told.err.strip().splitlines()) == 1, told.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
