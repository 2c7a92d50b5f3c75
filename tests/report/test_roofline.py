"""The roofline as a picture: for a page, and as files."""

import xml.etree.ElementTree as ET

import pytest

from tfperf.errors import ResultFileError
from tfperf.explaining.explanation import Roof
from tfperf.report.plots import check_plot_path
from tfperf.report.roofline import RooflinePoint, points_of, roofline_plot, write_roofline

ROOFS = (Roof(name="float32", flops_per_second=1e11), Roof(name="memory", bytes_per_second=1e10))
POINTS = (
    RooflinePoint("dense", 20.0, 6e10, 0.7),
    RooflinePoint("norm", 0.25, 2e9, 0.2),
    RooflinePoint("copy", 0.0, 0.0, 0.1),
    RooflinePoint("a call", 10.0, 3e10, 1.0, whole=True),
)
HOSTILE = '</text><script>alert("1")</script>$x_1$\u202e'


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def test_layers_are_numbered_by_their_time_and_named_below():
    told = texts(roofline_plot(POINTS, ROOFS))
    assert "1  dense, 70% of the time" in told
    assert "2  norm, 20% of the time" in told
    assert "diamond: the whole model" in told
    assert "memory, 10 GB/s" in told
    assert not any("copy" in text for text in told)  # it computes nothing and has no place on the scales


def test_layers_on_one_another_share_their_label():
    twins = [
        RooflinePoint("one", 20.0, 6e10, 0.5),
        RooflinePoint("two", 21.0, 6e10, 0.3),
        RooflinePoint("three", 0.2, 1e9, 0.2),
    ]
    told = texts(roofline_plot(twins, ROOFS))
    assert "1, 2" in told
    assert "3" in told


def test_the_same_points_give_the_same_bytes():
    assert roofline_plot(POINTS, ROOFS) == roofline_plot(POINTS, ROOFS)
    assert roofline_plot(POINTS, ROOFS, "other") != roofline_plot(POINTS, ROOFS)


def test_hostile_names_stay_text():
    svg = roofline_plot([RooflinePoint(HOSTILE, 1.0, 1e9, 0.5)], ROOFS)
    assert "<script" not in svg
    assert "\u202e" not in svg
    assert any("$x_1$" in text for text in texts(svg))


def test_nothing_to_show_is_no_picture():
    assert roofline_plot([POINTS[2]], ROOFS) is None
    assert roofline_plot([], ()) is None


@pytest.mark.parametrize(("ending", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_files_are_what_their_ending_says(tmp_path, ending, start):
    path = tmp_path / "deep" / f"roofline{ending}"
    write_roofline(path, POINTS, ROOFS, HOSTILE)
    assert path.read_bytes().startswith(start)
    again = tmp_path / f"again{ending}"
    write_roofline(again, [], (), "empty")
    assert again.exists()


def test_an_svg_file_has_no_script_and_is_whole(tmp_path):
    path = tmp_path / "roofline.svg"
    write_roofline(path, [RooflinePoint(HOSTILE, 1.0, 1e9, 0.5)], ROOFS, HOSTILE)
    assert ET.fromstring(path.read_text()).tag.endswith("svg")
    assert "<script" not in path.read_text()


@pytest.mark.parametrize("name", ["r.pdf", "r", "r.PNG"])
def test_another_ending_is_refused_in_a_line(tmp_path, name):
    with pytest.raises(ResultFileError, match=r"expected a plot's file to end in \.svg or \.png"):
        check_plot_path(tmp_path / name)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultFileError, match="cannot write the plot"):
        check_plot_path(tmp_path / "file" / "r.png")


def test_points_are_the_layers_and_the_whole_call(explained):
    *layers, whole = points_of(explained())
    assert [point.name for point in layers] == ["dense", "norm"]
    assert layers[0].intensity == 2.0
    assert layers[0].share == pytest.approx(0.8)
    assert whole.whole
    assert whole.rate == pytest.approx(4000 / 1e-4)
