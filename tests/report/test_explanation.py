"""What a person is shown: rows that sum up, words with their numbers, names that stay text."""

import io
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from tfperf.errors import ResultFileError
from tfperf.explaining.explanation import Technique
from tfperf.measure import Doubt, Ratio, Verdict
from tfperf.report.explanation import (
    advice_lines,
    check_page_path,
    doubt_lines,
    explanation_page,
    layer_rows,
    layer_table,
    traces_words,
    write_page,
)

HOSTILE = '</th><script>alert("1")</script>[red]$x_1$&amp;'


def test_small_layers_are_one_row_and_the_call_is_the_last(explained, layer_of_net):
    tiny = [layer_of_net(f"norm_{n}", seconds=1e-9, predicted=1e-9) for n in range(3)]
    rows = layer_rows(explained(layers=(layer_of_net(), *tiny)))
    assert [row[0] for row in rows] == ["dense", "3 others, each at most 1%", "between kernels", "a call, as a graph"]
    assert rows[0] == ("dense", "4 k", "1.953 KiB", "2", "8 us", "9 us", "4 us", "100.0%", "compute")
    assert rows[1][3] == "6"
    assert rows[-1][4:] == ("100 us", "90 us", "", "", "overhead")


def test_a_terminal_shows_the_largest_layers_and_breaks_no_word(explained, layer_of_net):
    layers = [layer_of_net(f"block_{n}_expand", seconds=(20 + n) * 1e-6) for n in range(30)]
    found = explained(layers=tuple(layers))
    rows = layer_rows(found, 10)
    assert [row[0] for row in rows[:10]] == [f"block_{n}_expand" for n in range(20, 30)]
    assert rows[10][0] == "20 others, each at most 4%"
    screen = io.StringIO()
    Console(file=screen, width=80, highlight=False).print(layer_table(found))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "between kernels" in screen.getvalue()
    assert "a call, as a graph" in screen.getvalue()
    assert lines[0].split("  ")[-1].strip() == "bound by"


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_long_names_of_layers_push_no_figure_out(explained, layer_of_net, width):
    layers = [layer_of_net(f"a_long_name_stage_{n}_block_0_depthwise_convolution") for n in range(3)]
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False).print(layer_table(explained(layers=tuple(layers))))
    text = screen.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "The names of layers are shown without a_long_name_stage_." in " ".join(text.split())
    assert text.count("8 us") >= 3
    assert text.count("compute") >= 3
    if width >= 80:
        assert "2_block_0_depthwise_convolution " in text


def test_lines_tell_gains_predicted_and_measured(explanation, explained):
    ratio = Ratio(baseline="graph", candidate="XLA", estimate=2.5, low=2.4, high=2.6, verdict=Verdict.FASTER)
    technique = Technique(
        recipe="operator_fusion", way="XLA", against="graph", words="Because.", before=3e-3, predicted=1e-3,
        measured=ratio,
    )  # fmt: skip
    found = explained(techniques=(technique,))
    told = list(advice_lines(explanation(batches=(found,)), found))
    assert (
        "would help: operator_fusion: 3x predicted, 2.5x [2.4, 2.6] measured, from 3 ms a call (graph) to 1 ms (XLA). "
        "Because."
    ) in told
    assert any(line.startswith("XLA compiles 9 operations into 4 kernels, 2 of them fusions") for line in told)
    assert told[-1] == "tf.function traced it 1 time for 1 batch size, once for each shape, as it should be"


def test_doubts_of_a_kind_are_one_line_that_is_cut(explanation):
    unknown = Doubt(name="vague", words="the median is known to 62.9% only", advice="raise the limit " + "more " * 30)
    vague = unknown.model_copy(update={"words": "the median is known to 31.6% only"})
    screen = io.StringIO()
    Console(file=screen, width=80, highlight=False).print(doubt_lines(explanation(doubts=(unknown, vague))))
    (line,) = screen.getvalue().splitlines()
    assert line.startswith("doubt: vague: raise the limit")
    assert len(line) <= 80


def test_traces_of_several_batches(explanation, explained):
    batches = (explained(), explained(batch=64))
    assert "2 times for 2 batch sizes, once for each" in traces_words(explanation(batches=batches, traces=2))
    assert traces_words(explanation(batches=batches, traces=5)).endswith("more often than needed")


def test_hostile_names_stay_text_everywhere(explanation, explained, layer_of_net, tmp_path):
    found = explanation(batches=(explained(layers=(layer_of_net(HOSTILE),)),), model=HOSTILE)
    body = explanation_page(found)
    assert "<script" not in body
    assert "&lt;script&gt;" in body
    ET.fromstring(f"<main>{body.partition('<main>')[2].partition('</main>')[0]}</main>")
    write_page(tmp_path / "deep" / "e.html", found)
    page = (tmp_path / "deep" / "e.html").read_text()
    assert "<script" not in page
    assert "[red]$x_1$" in page
    console = Console(width=300)
    with console.capture() as shown:
        console.print(layer_table(found.batches[0]))
    assert HOSTILE in shown.get()


def test_a_page_has_every_batch_with_its_picture(explanation, explained):
    body = explanation_page(explanation(batches=(explained(), explained(batch=64))))
    assert body.count("<svg") == body.count("<thead>") == 2
    assert "<h3>Batch 64</h3>" in body
    assert "<h2>What it waits for</h2>" in body


def test_a_larger_batch_is_told_for_each_example(explanation, explained):
    technique = Technique(
        recipe="batch_size_intensity", way="batch 64", against="graph", batch=64, words="Because.", before=3e-3,
        predicted=1e-3,
    )  # fmt: skip
    found = explained(techniques=(technique,))
    assert "3x predicted, from 3 ms an example (graph) to 1 ms (batch 64)" in next(
        advice_lines(explanation(batches=(found,)), found)
    )


@pytest.mark.parametrize("name", ["e.pdf", "e", "e.HTML"])
def test_a_page_elsewhere_is_refused_in_a_line(tmp_path, name):
    with pytest.raises(ResultFileError, match=r"expected a report's file to end in \.html"):
        check_page_path(tmp_path / name)


def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultFileError, match="cannot write the report"):
        check_page_path(tmp_path / "file" / "e.html")
