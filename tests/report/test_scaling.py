"""What more workers would buy, as a table that 80 columns hold and as a picture."""

import io

import pytest
from rich.console import Console

from tfperf.report.scaling import ScaleRow, scale_table, write_scale_plot

ROWS = [
    ScaleRow(1, 500.0, 500.0, 500.0, 500.0, 0.0, "compute"),
    ScaleRow(8, 1234.5, 2000.0, 4000.0, 500.0, 0.5, "inside the node"),
    ScaleRow(4096, 1_234_567.0, 1_500_000.0, 2_048_000.0, 500.0, 0.25, "late workers"),
]


def text(columns=80):
    console = Console(file=io.StringIO(), width=columns)
    console.print(scale_table(ROWS))
    return console.file.getvalue()


def test_80_columns_hold_it():
    lines = text().splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert lines[2].split() == ["8", "1,234", "2,000", "4,000", "50%", "50%", "inside", "the", "node"]
    assert "1,234,567" in lines[3]
    assert "73%" in lines[3]


def test_slow_workers_have_a_decimal():
    console = Console(file=io.StringIO(), width=80)
    console.print(scale_table([ScaleRow(2, 1.25, 2.5, 99.0, 1.25, 0.1, "link")]))
    assert console.file.getvalue().splitlines()[1].split()[1:4] == ["1.2", "2.5", "99.0"]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]])
def test_the_picture_is_written(tmp_path, rows):
    write_scale_plot(tmp_path / "s.png", rows, rows[0].workers, "net")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
