"""The answer, the table and the page of a search for a training plan."""

import itertools

import pytest
import rich

from tests.report.outcomes import HOSTILE, Bench
from tfperf.cli import main
from tfperf.errors import ResultFileError
from tfperf.measure import Comparison, Stop
from tfperf.measure.comparison import paired
from tfperf.measure.results import write_result
from tfperf.report.training import answer, training_page, trial_table, write_training_page
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.training.plan import TrainingPlan
from tfperf.trials.training.courses import Course
from tfperf.trials.training.trial import TrainingTrial
from tfperf.trials.trial import Status

PLAIN = TrainingPlan(batch_size=64)
FAST = TrainingPlan(changes=("fuse", "fast_optimizer"), loop="compiled", batch_size=64)
XLA = TrainingPlan(changes=("jit_compile",), batch_size=64)
COURSES = tuple(Course(losses=(2.0 + seed / 10, 1.0), moved={"kernel": 1.0}) for seed in range(3))


@pytest.fixture
def found(measured, environment):
    """A function that makes an outcome of a default plan of 1 s, a fast one of 0.5 s, and one that failed."""
    bench = Bench(measured)

    def trial(plan, seconds):
        fields = {"course": COURSES[0], "examples": 64, "measurement": measured(str(plan), bench.samples(seconds))}
        return TrainingTrial(plan=plan, status=Status.RAN, **fields)

    def found(reason="took 3 times as long", fast_seconds=0.5, **changes):
        trials = trial(PLAIN, 1.0), trial(FAST, fast_seconds)
        samples = {one.name: bench.samples(one.measurement.median) for one in trials}
        pairs = itertools.combinations(samples, 2)
        final = Comparison(
            measurements=tuple(measured(name, seconds) for name, seconds in samples.items()),
            ratios=tuple(paired(a, b, samples[a], samples[b], 0.01) for a, b in pairs),
            rounds=80,
            margin=0.01,
            stopped=Stop.PRECISION,
        )
        failed = TrainingTrial(plan=XLA, status=Status.NOT_TRIED, reason=reason)
        fields = {
            "created": "2026-01-02T03:04:05+00:00",
            "model": "net",
            "opened_as": "net.py:build",
            "data": "net.py:data",
            "takes_arrays": True,
            "batch_size": 64,
            "steps": 4,
            "environment": environment,
            "seconds": 100.0,
            "references": {str(PLAIN): COURSES},
            "trials": (*trials, failed),
            "left_out": {"mixed_bfloat16": "no arithmetic in it"},
            "final": final,
            "winner": str(FAST),
            "default": str(PLAIN),
        }
        return TrainingOutcome(**fields | changes)

    return found


def test_the_answer_says_how_much_faster_and_that_it_learns_the_same(found):
    words = answer(found())
    assert words.startswith("fused layers, fast optimizer, compiled loop, batch 64: 1")
    assert "x [" in words
    assert "] of Keras's fit, batch 64, its loss stays in the band of float32's seeds" in words


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"final": None, "ended": "interrupted"}, "Best so far, interrupted, not measured in turns: fused layers"),
        ({"ended": "time limit"}, "Best so far, the time was up: fused layers"),
        ({"winner": str(PLAIN)}, "What you have is the best already: Keras's fit, batch 64: "),
        ({"winner": None}, "No plan trained"),
    ],
)
def test_what_speaks_against_the_answer_comes_first(found, changes, begins):
    assert answer(found(**changes)).startswith(begins)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_default_that_failed_in_the_final_is_nothing_to_compare_with(found, is_final):
    outcome = found()
    lost = {"status": Status.CRASHED, "reason": "its process was killed", "measurement": None}
    trials = [one.model_copy(update=lost) if one.name == str(PLAIN) else one for one in outcome.trials]
    left = {"measurements": outcome.final.measurements[1:], "ratios": ()}
    final = outcome.final.model_copy(update=left) if is_final else None
    outcome = outcome.model_copy(update={"trials": tuple(trials), "final": final})
    words = answer(outcome)
    assert "inf" not in words
    assert "there is nothing to compare with, because Keras's fit, batch 64 failed in the final" in words


def test_the_table_has_the_fastest_first_and_says_what_failed(found, capsys):
    rich.print(trial_table(found()))
    told = capsys.readouterr().out
    assert told.index("the winner") < told.index("what you have")
    told = " ".join(told.split())
    assert "XLA, Keras's fit, batch 64: not tried: took 3 times as long" in told
    assert "mixed_bfloat16: not tried: no arithmetic in it" in told


def test_the_page_has_every_trial_and_both_pictures(found):
    page = training_page(found())
    assert page.count("<svg") == 2
    told = ("took 3 times as long", "no arithmetic in it", "use_mixed_precision(model)")
    for words in (str(PLAIN), str(FAST), str(XLA), *told):
        assert words.replace("'", "&#39;") in page


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(found, name):
    page = training_page(found(reason=name, model=name, opened_as=name, data=name, left_out={"fuse": name}))
    assert "<script>" not in page
    assert "<img" not in page
    assert "onload=document" not in page.replace("&#34;&gt;&lt;svg onload=document", "")


def test_the_result_file_becomes_the_page_again(found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcome = found()
    write_result("r.json", outcome)
    with pytest.raises(SystemExit) as ended:
        main(["report", "r.json"])
    assert ended.value.code == 0
    assert (tmp_path / "r.html").read_text() == training_page(outcome)
    with pytest.raises(SystemExit) as ended:
        main(["report", "r.json", "--output", "r.csv"])
    assert ended.value.code == 2
    assert ".html" in capsys.readouterr().err


def test_another_ending_is_refused(found, tmp_path):
    with pytest.raises(ResultFileError, match=r"\.html"):
        write_training_page(tmp_path / "r.md", found())
