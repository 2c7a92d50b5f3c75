"""Plots for files."""

import pytest

from tfperf.errors import ResultFileError
from tfperf.measure import compare
from tfperf.report import plots


@pytest.fixture(scope="module")
def comparison():
    return compare({"short": lambda: sum(range(100)), "long": lambda: sum(range(1000))}, time_limit=1.0)


def test_an_interval_plot_has_a_dot_and_a_name_for_each(tmp_path, comparison):
    seen = {}

    def draw(figure):
        axes = figure.subplots()
        plots.interval_plot(axes, comparison, "Title")
        seen.update(dots=len(axes.containers), names=[label.get_text() for label in axes.get_yticklabels()])

    plots.save(tmp_path / "deep" / "a.png", draw)
    assert seen == {"dots": 2, "names": ["short", "long"]}
    assert (tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_distribution_plot_has_a_curve_for_each(tmp_path, comparison):
    curves = []

    def draw(figure):
        axes = figure.subplots()
        plots.distribution_plot(axes, comparison.measurements, "Title")
        curves.extend(axes.lines)

    plots.save(tmp_path / "a.png", draw)
    assert len(curves) == 2


def test_a_failed_drawing_leaves_no_file(tmp_path):
    def draw(figure):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plots.save(tmp_path / "a.png", draw)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultFileError, match="cannot write the plot"):
        plots.save(tmp_path / "file" / "a.png", lambda figure: None)
