"""Who has won."""

import numpy as np
import pytest

from tfperf.engines.plan import Plan
from tfperf.measure import Comparison, Stop, Verdict
from tfperf.measure.comparison import paired
from tfperf.search.judging import winner_of
from tfperf.search.objectives import per_example
from tfperf.trials.trial import Status


@pytest.fixture
def trials(tried):
    """A function from engines with their seconds to trials by name, and names by engine."""

    def trials(**seconds):
        made = [tried(engine, value) for engine, value in seconds.items()]
        return {trial.name: trial for trial in made}

    return trials


def named(*engines):
    return tuple(f"{engine}, batch 1" for engine in engines)


def times(**seconds):
    return {f"{engine}, batch 1": value for engine, value in seconds.items()}


def test_nothing_ran(asked, tried):
    assert winner_of({}, asked(), None, None) == (None, ())
    failed = tried("onnx", status=Status.CRASHED)
    assert winner_of({failed.name: failed}, asked(), None, None) == (None, ())


def test_before_the_final_the_best_look_wins(asked, trials):
    looked = trials(onnx=1.2e-3, litert=1.0e-3, graph=1.1e-3)
    assert winner_of(looked, asked(), None, None) == ("litert, batch 1", ())


def test_the_final_decides_whatever_the_looks_were(asked, trials, compared):
    looked = trials(onnx=1.0e-3, litert=1.2e-3, graph=0.5e-3)
    final = compared(times(onnx=1.2e-3, litert=1.0e-3))
    assert winner_of(looked, asked(), final, None) == ("litert, batch 1", ())


def test_both_rounds_count_alike(asked, trials, compared):
    """One was lucky once: on average the other is ahead."""
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3)
    final = compared(times(onnx=0.97e-3, litert=1.0e-3, graph=2e-3))
    confirmation = compared(times(litert=0.90e-3, onnx=1.0e-3))
    assert winner_of(looked, asked(), final, confirmation)[0] == "litert, batch 1"
    confirmation = compared(times(litert=0.99e-3, onnx=1.0e-3))
    assert winner_of(looked, asked(), final, confirmation)[0] == "onnx, batch 1"


def test_equals_are_those_that_each_round_does_not_tell_apart(asked, trials, compared):
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3, xla=1e-3)
    final = compared(times(onnx=1.000e-3, litert=1.002e-3, graph=1.05e-3, xla=1.001e-3))
    assert winner_of(looked, asked(), final, None) == (named("onnx")[0], named("litert", "xla"))
    confirmation = compared(times(onnx=1.0e-3, litert=1.002e-3, xla=1.05e-3))
    best, equals = winner_of(looked, asked(), final, confirmation)
    assert best == "onnx, batch 1"
    assert equals == named("litert", "xla")  # xla was slower once, and as fast once
    final = compared(times(onnx=1.0e-3, litert=1.002e-3, graph=1.05e-3, xla=1.05e-3))
    assert winner_of(looked, asked(), final, confirmation)[1] == named("litert")


def test_too_noisy_is_not_told_apart(asked, trials, compared):
    final = compared(times(onnx=1.0e-3, litert=1.02e-3), spread=0.1, rounds=10)
    best, equals = winner_of(trials(onnx=1.0, litert=1.0), asked(), final, None)
    assert {best, *equals} == set(named("onnx", "litert"))


@pytest.mark.parametrize(
    ("disturbed", "winner"),
    [
        (1.08e-3, "onnx"),  # as by neighbours on the same processor
        (2.08e-3, "litert"),  # as by threads that wake on one processor
    ],
)
def test_of_those_that_cannot_be_told_apart_the_best_in_both_ratios_wins(asked, trials, measured, disturbed, winner):
    """Most turns of one were disturbed, so that its median is higher, and its undisturbed calls are faster."""
    samples = {"onnx": [disturbed, disturbed, 1e-3, disturbed, disturbed, 1e-3, disturbed], "litert": [1.05e-3] * 7}
    taken = {f"{engine}, batch 1": times for engine, times in samples.items()}
    final = Comparison(
        measurements=tuple(measured(name, seconds) for name, seconds in taken.items()),
        ratios=(paired(*taken, *map(np.array, taken.values()), 0.01),),
        rounds=7,
        margin=0.01,
        stopped=Stop.TIME_LIMIT,
    )
    assert final.ratio(*taken).estimate > 1  # litert is ahead
    assert final.ratio(*taken).verdict is not Verdict.FASTER
    (other,) = samples.keys() - {winner}
    for confirmation in (None, final):
        assert winner_of(trials(onnx=1e-3, litert=1e-3), asked(), final, confirmation) == (
            f"{winner}, batch 1",
            named(other),
        )


@pytest.mark.parametrize(
    ("slower", "batch", "precision", "wins"),
    [
        (1.003, 1, "int8", True),
        (1.05, 1, "int8", False),  # told apart
        (1.003, 2, "int8", False),  # of another batch size
        (1.003, 1, "float32", False),  # changed otherwise, too
    ],
)
def test_of_equals_that_differ_in_the_fixed_batch_alone_the_fixed_one_wins(
    asked, tried, compared, slower, batch, precision, wins
):
    for others in ((), ("fold_batch_norm",)):
        fixing = {"transformations": (*others, "fixed_batch"), "batch": batch}
        made = [
            tried("onnx", precision="int8", transformations=others),
            tried(Plan(engine="onnx", precision=precision, **fixing), batch=batch),
            tried(Plan(engine="litert", precision="int8", **fixing), batch=batch),
        ]
        opened, fixed, other = (trial.name for trial in made)
        taken = compared({opened: 1e-3, fixed: slower * batch * 1e-3, other: 1.003e-3 * batch})
        final = per_example(taken, {trial.name: trial.batch for trial in made})
        question = asked(objectives=("throughput",))
        best, equals = winner_of({trial.name: trial for trial in made}, question, final, None)
        assert best == (fixed if wins else opened)
        assert ({best, *equals} >= {opened, fixed}) == (slower < 1.01)


def test_an_equal_that_was_not_measured_again_is_still_one(asked, trials, compared):
    """Only some of the finalists are confirmed."""
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3, xla=1e-3)
    final = compared(times(onnx=1.000e-3, litert=1.001e-3, graph=1.002e-3, xla=1.2e-3))
    confirmation = compared(times(onnx=1.000e-3, litert=1.001e-3))
    assert winner_of(looked, asked(), final, confirmation) == (named("onnx")[0], named("graph", "litert"))


def test_a_finalist_that_failed_later_is_out(asked, trials, compared):
    looked = trials(onnx=1e-3, litert=1.1e-3)
    final = compared(times(onnx=1.0e-3, litert=1.1e-3))
    looked["onnx, batch 1"] = looked["onnx, batch 1"].model_copy(update={"status": Status.CRASHED})
    assert winner_of(looked, asked(), final, None) == ("litert, batch 1", ())


def test_the_latency_limit_is_kept_by_what_is_known_best(asked, trials, compared):
    looked = trials(onnx=1.0e-3, litert=1.9e-3, graph=3e-3)
    assert winner_of(looked, asked(latency_limit=0.5e-3), None, None) == (None, ())
    final = compared(times(onnx=2.1e-3, litert=2.2e-3, graph=1.9e-3))
    assert winner_of(looked, asked(latency_limit=2e-3), final, None) == ("graph, batch 1", ())
    limited = asked(latency_limit=2e-3, objectives=("size",))
    assert winner_of(looked, limited, final, None) == ("graph, batch 1", ())


def test_throughput_is_by_examples(asked, tried, compared):
    few, many = tried("onnx", 1e-3, batch=1), tried("onnx", 3e-3, batch=8)
    trials = {one.name: one for one in (few, many)}
    assert winner_of(trials, asked(objectives=("throughput",)), None, None)[0] == "onnx, batch 8"
    assert winner_of(trials, asked(), None, None)[0] == "onnx, batch 1"


@pytest.mark.parametrize(("objective", "near", "far"), [("size", 1009, 1011), ("memory", 1049, 1051)])
def test_those_of_nearly_the_same_size_are_decided_by_time(asked, tried, compared, objective, near, far):
    made = [tried(one, 1e-3, **{objective: value}) for one, value in [("onnx", 1000), ("litert", near), ("xla", far)]]
    trials = {one.name: one for one in made}
    question = asked(objectives=(objective,))
    final = compared(times(onnx=1.2e-3, litert=1.0e-3, xla=0.5e-3))
    assert winner_of(trials, question, final, None) == ("litert, batch 1", ())
    final = compared(times(onnx=1.0e-3, litert=1.0e-3, xla=0.5e-3))
    best, equals = winner_of(trials, question, final, None)
    assert {best, *equals} == set(named("onnx", "litert"))


def test_before_the_final_the_smallest_within_the_band_that_is_fastest(asked, tried):
    made = [tried("onnx", 2e-3, size=1000), tried("litert", 1e-3, size=1005), tried("xla", 1e-4, size=1020)]
    found = winner_of({one.name: one for one in made}, asked(objectives=("size",)), None, None)
    assert found == ("litert, batch 1", ())
