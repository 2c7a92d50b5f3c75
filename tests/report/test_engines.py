"""A survey of engines as tables, a sentence, a picture and a result file."""

import io
import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from tfperf.engines import Plan
from tfperf.measure import Agreement, Comparison, Doubt, Stop, Verdict
from tfperf.measure.comparison import paired
from tfperf.measure.results import read_result, write_result
from tfperf.report import engines, plots
from tfperf.trials.survey import Survey
from tfperf.trials.trial import Status, Trial

SECONDS = {"eager": 1e-3, "graph": 2e-4, "litert": 1e-5, "onnx": 1e-5, "litert int8": 5e-6}
NOISE = np.random.default_rng(0).normal(1, 0.001, (2, 40))


@pytest.fixture
def surveyed(measured):
    """A function that makes a Survey of plans ("litert int8") that took so many seconds, or did not run (a reason)."""

    def plan_of(words):
        engine, *precision = words.split()
        return Plan(engine=engine, precision=precision[0] if precision else "float32", threads=1)

    def surveyed(told, batch=8, answers_vary=True, **changes):
        rows, samples = [], {}
        for index, (words, found) in enumerate(told.items()):
            plan = plan_of(words)
            row = Trial(plan=plan, batch=batch, status=Status.RAN)
            if isinstance(found, str):
                rows.append(row.model_copy(update={"status": Status.REFUSED, "reason": found}))
                continue
            samples[row.name] = found * NOISE[index % 2]
            agreement = Agreement(
                candidate=str(plan),
                largest_absolute_error=1e-3,
                relative_error=3e-5,
                same_top1_share=1.0,
                tolerance=1e-4,
            )
            fields = {
                "proof": {"precision": "all of it", "threads": "1, as it says"},
                "size": 3 * 2**20 if plan.engine != "eager" else None,
                "load_seconds": 0.25,
                "first_call_seconds": 0.125,
                "agreement": agreement,
                "measurement": measured(row.name, samples[row.name], **changes),
                "cores_used": 1.26,
            }
            rows.append(row.model_copy(update=fields))
        comparison = None
        if len(samples) > 1:
            comparison = Comparison(
                measurements=tuple(row.measurement for row in rows if row.measurement),
                ratios=tuple(paired(a, b, samples[a], samples[b], 0.01) for a, b in itertools.combinations(samples, 2)),
                rounds=40,
                margin=0.01,
                stopped=Stop.PRECISION,
            )
        return Survey(batch=batch, trials=tuple(rows), comparison=comparison, answers_vary=answers_vary)

    return surveyed


def shown(table, width=100):
    screen = io.StringIO()
    Console(width=width, file=screen, highlight=False).print(table)
    return screen.getvalue()


def test_speed_is_told_against_what_users_begin_with(surveyed):
    text = shown(engines.speed_table(surveyed({"predict": 0.05} | SECONDS)))
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert {"predict", *SECONDS} <= lines.keys()
    assert lines["eager"].rstrip().endswith(" 1")
    assert "1 ms [" in lines["eager"]
    assert 7900 < float(lines["eager"].split("]")[1].split()[0].replace(",", "")) < 8100  # examples a second
    assert 99 < float(lines["litert"].split("x [")[0].split()[-1]) < 101
    assert "0.02x" in lines["predict"]
    without = shown(engines.speed_table(surveyed({"litert": 2e-5, "onnx": 1e-5})))
    assert "2x [" in next(line for line in without.splitlines() if "onnx" in line)


def test_costs_are_told_for_each_plan(surveyed):
    text = shown(engines.cost_table(surveyed(SECONDS)))
    row = next(line for line in text.splitlines() if "litert int8" in line)
    for words in ("3e-05", "100 %", "250 ms", "125 ms", "3 MiB", "100 MiB", "1.3"):
        assert words in row
    assert " - " in next(line for line in text.splitlines() if "eager" in line)  # it loads nothing


def test_who_did_not_run_and_every_doubt_come_last(surveyed):
    doubt = Doubt(name="drift", words="it drifts", advice="wait")
    survey = surveyed({"eager": 1e-3, "onnx": 1e-4, "xla": "XLA has no [red]Foo[/red]"}, doubts=(doubt,))
    text = shown(engines.failures_and_doubts(survey))
    assert "xla: refused: XLA has no [red]Foo[/red]" in text
    assert "doubt: it drifts: wait (all)" in text
    assert text.count("it drifts") == 1
    assert "xla" not in shown(engines.cost_table(survey))
    assert "xla" not in shown(engines.speed_table(survey))
    alike = shown(engines.failures_and_doubts(surveyed({"onnx": 1e-4}, answers_vary=False)), width=200)
    assert "doubt: the net gives nearly the same outputs for different inputs" in alike
    assert "alike" not in text
    assert "alike" not in shown(engines.failures_and_doubts(surveyed({"xla": "no"}, answers_vary=False)))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            SECONDS,
            (
                "fastest in float32 at batch 8: {best}, 1 thread, 10 us a call, 100x of eager "
                "(not distinguishable: {other})"
                "; fastest of all at batch 8: litert, int8, 1 thread, 5 us a call, 200x of eager"
            ),
        ),
        ({"graph": 1e-4, "onnx": 5e-5}, "fastest in float32 at batch 8: onnx, 1 thread, 50 us a call, 2x of graph"),
        ({"eager": 1e-4, "onnx": 5e-4}, "fastest in float32 at batch 8: eager, 1 thread, 100 us a call"),
        ({"onnx": 1e-4, "xla": "no"}, "fastest in float32 at batch 8: onnx, 1 thread, 100 us a call"),
        ({"litert int8": 1e-4}, "fastest of all at batch 8: litert, int8, 1 thread, 100 us a call"),
        ({"xla": "no"}, "no plan ran at batch 8"),
        ({}, "no plan ran at batch 8"),
    ],
    ids=["all", "two", "the baseline itself", "alone", "no float32", "none", "nothing"],
)
def test_the_answer_in_a_sentence(surveyed, monkeypatch, told, words):
    monkeypatch.setattr(engines, "format_seconds", lambda seconds: f"{seconds * 1e6:.0f} us")
    monkeypatch.setattr(engines, "plain_ratio", lambda ratio: f"{ratio:.0f}")
    found = engines.answer(surveyed(told))
    assert found in {words.format(best=best, other=other) for best, other in [("litert", "onnx"), ("onnx", "litert")]}


def test_after_too_few_rounds_no_plan_is_called_equal(surveyed):
    survey = surveyed({"graph": 1e-4, "litert": 5e-5, "onnx": 2e-5})
    few = tuple(ratio.model_copy(update={"verdict": Verdict.TOO_FEW}) for ratio in survey.comparison.ratios)
    comparison = survey.comparison.model_copy(update={"ratios": few})
    found = engines.answer(survey.model_copy(update={"comparison": comparison}))
    assert found.startswith("fastest in float32 at batch 8: onnx, 1 thread, ")
    assert found.endswith("x of graph (too few rounds for a verdict)")


def test_the_picture_shows_every_plan_of_every_survey(surveyed, tmp_path):
    surveys = [surveyed(SECONDS, batch=1), surveyed({name: 300 * s for name, s in SECONDS.items()}, batch=256)]
    seen = []

    def draw(figure: Figure):
        engines.survey_plots(figure, surveys, "net")
        seen.extend(figure.axes)

    plots.save(tmp_path / "a.png", draw)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in seen] == ["net, batch 1, 1 thread", "net, batch 256, 1 thread"]
    for axes, survey in zip(seen, surveys, strict=True):
        fastest_first = sorted(survey.ran, key=lambda row: row.measurement.interval.estimate)
        assert axes.get_yticklabels()[0].get_text() == "litert int8"
        dots = [container.lines[0].get_xydata()[0] for container in axes.containers]
        low, high = axes.get_xlim()
        assert [x for x, _ in dots] == [row.measurement.interval.estimate for row in fastest_first]
        assert all(low < x < high for x, _ in dots)
        assert len(axes.texts) == len(SECONDS)
        assert "error 3e-05" in axes.texts[0].get_text()


def test_a_picture_of_nothing_is_no_error(surveyed, tmp_path):
    surveys = [surveyed({"xla": "no"}), surveyed({"onnx": 1e-3})]
    plots.save(tmp_path / "a.png", lambda figure: engines.survey_plots(figure, surveys, "net"))
    plots.save(tmp_path / "b.png", lambda figure: engines.survey_plots(figure, surveys[:1], "net"))
    assert (tmp_path / "b.png").exists()


def test_a_result_file_keeps_all_of_it(surveyed, tmp_path):
    surveys = [surveyed(SECONDS | {"xla": "cannot"}, batch=1), surveyed({"litert": 1e-3, "xla": "cannot"}, batch=256)]
    result = engines.survey_result("engines net", surveys)
    write_result(tmp_path / "r.json", result)
    again = read_result(tmp_path / "r.json")
    assert again == result
    assert again.runs.keys() == {row.name for survey in surveys for row in survey.ran}
    assert [one.name for one in again.measurements] == ["litert, 1 thread, batch 256"]  # it ran alone
    assert len(again.agreements) == 6
    assert again.meaning == tuple(map(engines.answer, surveys))
    facts = again.facts
    assert facts["litert, 1 thread, batch 256: bytes on disk"] == 3 * 2**20
    assert facts["litert, int8, 1 thread, batch 1: proof of threads"] == "1, as it says"
    assert facts["litert, 1 thread, batch 1: cores used"] == 1.26
    assert facts["xla, 1 thread, batch 256: reason"] == "cannot"
    assert facts["xla, 1 thread, batch 256: status"] == "refused"
    assert "eager, 1 thread, batch 1: bytes on disk" not in facts
