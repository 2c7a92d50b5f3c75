"""What a search found, in pictures: well-formed, safe beside one another on a page, and true."""

import re
import xml.etree.ElementTree as ET

import pytest

from tfperf.report import tuning_plots
from tfperf.report.tuning_facts import Facts

SVG = "{http://www.w3.org/2000/svg}"
PLOTS = {name: getattr(tuning_plots, name) for name in tuning_plots.__all__}


@pytest.fixture(scope="module")
def pictures():
    """Made-up outcome -> its pictures."""
    return {}


@pytest.fixture
def drawn(made_up, pictures):
    """A function that gives every picture of an outcome: name -> SVG, of those that have something to show."""

    def drawn(case):
        if case not in pictures:
            facts = Facts(made_up(case))
            pictures[case] = {name: svg for name, draw in PLOTS.items() if (svg := draw(facts))}
        return pictures[case]

    return drawn


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def dots(svg):
    """Places of the marks, x and y, in the order they were drawn; ticks are marks too and are left out."""
    marks = [element for element in ET.fromstring(svg).iter(f"{SVG}use") if "var(--s" in element.get("style", "")]
    return [(float(mark.get("x")), float(mark.get("y"))) for mark in marks]


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("one_winner", {"speed_up_plot", "distribution_plot", "cost_plot", "accuracy_plot"}),
        ("throughput", set(PLOTS) - {"front_plot"}),
        ("pareto", set(PLOTS) - {"throughput_plot"}),
        ("interrupted", {"cost_plot", "accuracy_plot"}),
        ("nothing_ran", set()),
    ],
)
def test_there_is_a_picture_where_there_is_something_to_show(drawn, case, names):
    assert drawn(case).keys() == names


def test_pictures_are_the_same_each_time(drawn, pictures):
    first = drawn("pareto")
    pictures.clear()
    assert drawn("pareto") == first


@pytest.mark.parametrize("case", ["hostile", "pareto", "throughput"])
def test_pictures_are_well_formed_and_hold_nothing_but_shapes_and_text(drawn, case):
    for svg in drawn(case).values():
        root = ET.fromstring(svg)
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            "svg", "defs", "g", "path", "use", "text", "clipPath", "rect",
        }  # fmt: skip
        assert {name for element in root.iter() for name in element.attrib if name.startswith("on")} == set()
        assert "<!--" not in svg
        assert "20" + "26" not in svg  # no date
        assert root.get("viewBox").startswith("0 0 360 ")


@pytest.mark.parametrize("case", ["hostile", "throughput"])
def test_ids_are_unique_over_all_pictures_and_every_reference_has_its_target(drawn, case):
    pictures = drawn(case).values()
    ids = [element.get("id") for svg in pictures for element in ET.fromstring(svg).iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for svg in pictures:
        own = {element.get("id") for element in ET.fromstring(svg).iter()}
        used = re.findall(r'(?:url\(#|href="#)([^")]+)', svg)
        assert used
        assert set(used) <= own
        assert len(re.findall("url\\(|href=", svg)) == len(used)  # nothing points outside


def test_colours_follow_the_page(drawn):
    for svg in drawn("one_winner").values():
        without = re.sub(r"var\(--\w+, #[0-9a-f]{6}\)", "", svg)
        assert not re.findall("#[0-9a-f]{6}\\b", without), "a colour that would stay as it is in the dark"


def test_hostile_names_are_text_as_they_are(drawn, outcomes):
    told = " ".join(texts(drawn("hostile")["cost_plot"]))
    for words in outcomes.HOSTILE:
        assert words[:20] in told
    assert "x" * 60 not in told


def test_a_dollar_sign_is_no_formula(made_up):
    outcome = made_up("equals")
    plan = outcome.trials[0].plan.model_copy(update={"engine": "$x_1$ <$y$>"})
    trials = (outcome.trials[0].model_copy(update={"plan": plan}), *outcome.trials[1:])
    alone = {"final": None, "confirmation": None, "defaults": (trials[0].name,)}
    svg = tuning_plots.cost_plot(Facts(outcome.model_copy(update={"trials": trials, **alone})))
    assert "$x_1$ <$y$>, 1 thread" in texts(svg)


def test_speed_ups_rise_downwards_and_to_the_right_with_their_figures(drawn, made_up):
    svg, facts = drawn("one_winner")["speed_up_plot"], Facts(made_up("one_winner"))
    places = [(float(mark.get("x")), float(mark.get("y"))) for mark in ET.fromstring(svg).iter(f"{SVG}use")]
    rows = sorted({round(y, 3) for _, y in dots(svg)})
    assert len(rows) == 3  # the defaults; the others are grey
    assert [x for x, _ in sorted(dots(svg), key=lambda dot: dot[1])] == sorted(x for x, _ in dots(svg))
    assert len(places) > 5
    ratio = facts.side_by_side(facts.baseline, facts.best)
    told = texts(svg)
    assert {"1x", "10x", "100x", "1,000x"} <= set(told)
    assert f"{ratio.estimate:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}]" in told
    assert [
        words for words in told if words in {"onnx, 1 thread", "frozen, 1 thread", "tf.function", "model(x)", "predict"}
    ] == ["onnx, 1 thread", "frozen, 1 thread", "tf.function", "model(x)", "predict"]


def test_distributions_are_drawn_of_what_comes_near_to_the_best(drawn):
    told = texts(drawn("one_winner")["distribution_plot"])
    assert {"litert, 1 thread", "onnx, 1 thread"} <= set(told)
    assert not {"frozen, 1 thread", "model(x)", "predict"} & set(told)


def test_the_batch_sizes_of_the_best_plan_are_named(drawn):
    assert {"batch 1", "batch 8", "batch 64", "batch 256"} <= set(texts(drawn("throughput")["throughput_plot"]))


def test_a_plan_below_the_tolerance_lies_below_its_line(drawn):
    svg = drawn("pareto")["accuracy_plot"]
    assert "passes up to 0.05" in texts(svg)
    paths = ET.fromstring(svg).iter(f"{SVG}path")
    line = next(path for path in paths if "dasharray: 1" in path.get("style", ""))
    height = float(re.search(r"M [\d.]+ ([\d.]+)", line.get("d"))[1])
    assert len(dots(svg)) == 6 + 2  # of the trials, and of the key
    assert all(y > height for _, y in dots(svg))  # y counts downwards


def test_the_front_is_numbered_as_it_is_listed(drawn):
    svg = drawn("pareto")["front_plot"]
    assert [words for words in texts(svg) if words in set("123456789")] == ["1", "2", "3", "4"]
    xs = [x for x, _ in dots(svg)]
    assert xs == sorted(xs)
    assert len(xs) == 4


def test_a_distribution_of_many_samples_is_no_large_picture(made_up, measured):
    import numpy as np

    outcome = made_up("equals")
    samples = np.random.default_rng(0).lognormal(-11, 0.1, 20_000)
    many = [one.model_copy(update={"seconds": tuple(samples)}) for one in outcome.final.measurements]
    final = outcome.final.model_copy(update={"measurements": tuple(many)})
    assert len(tuning_plots.distribution_plot(Facts(outcome.model_copy(update={"final": final})))) < 40_000
