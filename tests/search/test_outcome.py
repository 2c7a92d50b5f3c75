"""What a search found, in a file."""

import pytest

from tfperf.errors import ResultFileError
from tfperf.measure import Doubt
from tfperf.measure.results import read_document, write_result
from tfperf.search.outcome import Outcome
from tfperf.trials.trial import Status


@pytest.fixture
def outcome(tried, compared, asked, environment):
    trials = (tried("graph", 2e-3), tried("honest", 1e-3, threads=1), tried("equal", threads=1, status=Status.WRONG))
    return Outcome(
        model="dense",
        opened_as="dense.py:build",
        question=asked(objectives=("latency", "size"), batches=(1,), tolerance=3e-4),
        environment=environment,
        seconds=12.5,
        ended="time limit",
        trials=trials,
        final=compared({trials[0].name: 2e-3, trials[1].name: 1e-3}),
        confirmation=compared({trials[1].name: 1e-3, trials[0].name: 3e-3}),
        winner=trials[1].name,
        defaults=(trials[0].name,),
        front=(trials[1].name,),
        reference_accuracy=0.75,
        doubts=(Doubt(name="odd", words="it is odd", advice="look again"),),
    )


def test_what_is_written_is_read_again(outcome, tmp_path):
    write_result(tmp_path / "deep" / "r.json", outcome)
    assert read_document(tmp_path / "deep" / "r.json", Outcome) == outcome
    nothing = outcome.model_copy(update={"trials": (), "final": None, "confirmation": None, "winner": None})
    write_result(tmp_path / "deep" / "r.json", nothing)
    assert read_document(tmp_path / "deep" / "r.json", Outcome) == nothing
    assert nothing.best is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"version": 1', '"version": 2', "newer"),
        ('"tfperf tune"', '"tfperf result"', "expected the format"),
        ('"winner"', '"loser"', "loser"),
        ('"ended": "time limit"', '"ended": "bored"', "ended"),
        ('"tolerance": 0.0003', '"tolerance": -1', "question.tolerance"),
    ],
)
def test_what_was_tampered_with_is_refused(outcome, tmp_path, old, new, words):
    write_result(tmp_path / "r.json", outcome)
    text = (tmp_path / "r.json").read_text()
    assert old in text
    (tmp_path / "r.json").write_text(text.replace(old, new))
    with pytest.raises(ResultFileError, match=words):
        read_document(tmp_path / "r.json", Outcome)


def test_trials_by_name(outcome):
    assert outcome.best is outcome.trial("honest, 1 thread, batch 1") is outcome.trials[1]
    with pytest.raises(KeyError, match="no trial 'onnx'"):
        outcome.trial("onnx")


def test_a_speed_up_is_of_the_latest_round_that_has_both(outcome):
    assert outcome.speed_up("graph, batch 1").estimate == pytest.approx(3.0, rel=0.01)
    one_round = outcome.model_copy(update={"confirmation": None})
    assert one_round.speed_up("graph, batch 1").estimate == pytest.approx(2.0, rel=0.01)
    assert (one_round.speed_up("graph, batch 1").candidate, one_round.speed_up("eager, batch 1")) == (
        "honest, 1 thread, batch 1",
        None,
    )
    assert outcome.speed_up(outcome.winner) is None
    assert outcome.model_copy(update={"winner": None}).speed_up("graph, batch 1") is None
