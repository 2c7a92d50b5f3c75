"""`tfperf scale`: its table, sentences and files, what it refuses, and what it measures."""

import os
import re
import subprocess
import sys

import pytest

from tfperf.cli import main
from tfperf.measure.results import read_document
from tfperf.scaling.showing import ScaleRecord

GIVEN = ("--link", "25Gbps,15us", "--images-per-second", "400")


SECONDS = 240
"""For a process to end, on a machine that does much else."""


@pytest.fixture
def scale(tmp_path):
    """A function that runs it in a process of its own on a terminal of 80 columns, which never outlives the test."""

    def scale(*arguments):
        command = [sys.executable, "-m", "tfperf", "scale", *arguments]
        environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS)

    return scale


def test_given_figures_need_no_measuring(scale, tmp_path):
    result = scale(
        "resnet18", *GIVEN, "--workers", "1:4096", "--per-node", "4", "--inside", "96Gbps,0us", "--json", "deep/s.json",
        "--plot", "s.png",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if re.match(r" +[\d,]+ +[\d,]", line)]
    assert [row[0] for row in rows] == [f"{2**power:,}" for power in range(13)]
    assert rows[0][1:6] == ["400", "400", "400", "100%", "0%"]
    text = " ".join(result.stdout.split())
    for words in ("Workers pay up to", "What would help there, by gain", "Time to the same accuracy", "not calibrated"):
        assert words in text
    written = read_document(tmp_path / "deep" / "s.json", ScaleRecord)
    assert [row.workers for row in written.rows] == [2**power for power in range(13)]
    assert not written.calibrated
    assert written.gradient_bytes == pytest.approx(44.7e6, rel=0.01)
    assert all(row.efficiency.slow <= row.efficiency.likely <= row.efficiency.fast for row in written.rows)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(280)
def test_what_is_not_given_is_measured(scale, tmp_path):
    (tmp_path / "my_model.py").write_text(
        "import keras\n\n\ndef build():\n    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])\n"
    )
    result = scale("my_model.py:build", "--workers", "1,2", "--batch", "8", "--json", "s.json")
    assert result.returncode == 0, result.stderr
    assert "cuda" not in result.stderr.lower()
    text = " ".join(result.stdout.split())
    assert re.search(r"a step of one worker is measured on this machine \(batch 2: .* ms, 4: .* ms, 8: .* ms\)", text)
    assert "is measured between two of them" in text
    written = read_document(tmp_path / "s.json", ScaleRecord)
    assert written.calibrated
    assert written.rows[0].examples_per_second.likely == pytest.approx(8 / written.one_worker_seconds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--link", "25Gbit,15us", "--images-per-second", "4"], "25Gbps,15us"),
        (["--link", "25Gbps", "--images-per-second", "4"], "25Gbps,15us"),
        ([*GIVEN, "--workers", "0"], "--workers"),
        ([*GIVEN, "--workers", "4:1"], "--workers"),
        ([*GIVEN, "--workers", "1,2,6", "--per-node", "4"], "divide"),
        ([*GIVEN, "--per-node", "0"], "--per-node"),
        ([*GIVEN, "--inside", "fast"], "25Gbps,15us"),
        ([*GIVEN, "--algorithm", "star"], "halving_doubling"),
        ([*GIVEN, "--transport", "pigeon"], "nccl-rdma"),
        (["--link", "25Gbps,15us", "--images-per-second", "0"], "--images-per-second"),
        (["--link", "25Gbps,15us", "--images-per-second", "nan"], "--images-per-second"),
        (["--images-per-second", "100"], "--link"),
        (["--per-node", "2"], "--link"),
        ([*GIVEN, "--plot", "s.pdf"], ".png"),
        ([*GIVEN, "--json", "/dev/null/s.json"], "--json"),
        ([*GIVEN, "--batch", "0"], "--batch"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        main(["scale", "mlp", *arguments])
    written = capsys.readouterr()
    assert end.value.code == 2
    assert written.out == ""
    assert len(written.err.splitlines()) == 1
    assert written.err.startswith("tfperf: ")
    assert words in written.err


def test_a_model_that_is_none_is_one_line_and_exit_code_2(scale):
    result = scale("nonsense", *GIVEN)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("tfperf: expected a net")
    assert "Traceback" not in result.stderr
