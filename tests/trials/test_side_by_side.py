"""Plans side by side: whatever some of them do, the others are checked and measured as if they were alone."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.measure.memory import MemoryPeak
from tfperf.measure.sampling import TimesItself
from tfperf.trials.launching import Launcher
from tfperf.trials.side_by_side import (
    Examples,
    InTurns,
    Turns,
    answers_vary,
    checked_trial,
    failed_trial,
    measure_in_turns,
)
from tfperf.trials.trial import Status, TrialError, median_seconds

BATCH = 4

GIVE_UP = "; its process was ended"

BAD = {
    "wrong": (Status.WRONG, "wrong answers: wrong DISAGREES: relative error 0.01, tolerance 0.0001"),
    "memory_of_one": (Status.WRONG, "wrong answers: memory_of_one DISAGREES: relative error "),
    "nan": (Status.WRONG, "wrong answers: nan: an output is not a finite number, or its shape differs"),
    "raises": (Status.REFUSED, "raises: RuntimeError: no such operation"),
    "odd_proof": (Status.REFUSED, "odd_proof: its proof.precision: Value error, expected printable characters only"),
    "no_module": (Status.REFUSED, "no_module: ModuleNotFoundError: No module named 'no_such_module'"),
    "hang_in_build": (Status.TIMED_OUT, f"hang_in_build: no answer within 2 s{GIVE_UP}"),
    "hang_in_call": (Status.TIMED_OUT, f"hang_in_call: no answer within 2 s{GIVE_UP}"),
    "hog": (Status.OUT_OF_MEMORY, f"hog: took more than 0.5 GiB of memory{GIVE_UP}"),
    "hog_child": (Status.OUT_OF_MEMORY, f"hog_child: took more than 0.5 GiB of memory{GIVE_UP}"),
    "exits": (Status.CRASHED, "exits: its process ended with exit code 7:  [31mout of luck"),
    "segfault": (Status.CRASHED, "segfault: its process was killed by SIGSEGV"),
}
GOOD = ("honest", "equal", "forker", "spinner_child", "flood")


@pytest.fixture
def launcher(dense, planted, tmp_path):
    """A function from limits to a launcher for the dense net, whose conversion is known."""
    servable, origin, cache = dense
    with contextlib.ExitStack() as stack:
        yield lambda **limits: stack.enter_context(Launcher(servable, origin, tmp_path, cache=cache, **limits))


@pytest.fixture
def examples(dense, tmp_path):
    return Examples.store(tmp_path, dense[0], BATCH)


def tried(several, plan, examples):
    """The trial of a plan after its answers were checked, with its work if they were right."""
    try:
        process, loaded = several.start(plan)
        return checked_trial(process, loaded, examples), process.work(examples.batch)
    except TrialError as error:
        return failed_trial(plan, examples.batch, error), None


def test_bad_plans_have_their_reason_and_the_others_are_measured(launcher, examples, planted):
    planted.set(bytes=2**24)
    plans = [Plan(engine=engine) for engine in (*GOOD[:2], *BAD, *GOOD[2:])]
    with launcher(memory_limit=2**29) as several, launcher(deadline=2.0) as impatient, ThreadPoolExecutor(3) as pool:

        def try_it(plan):
            return tried(impatient if plan.engine.startswith("hang") else several, plan, examples)

        found = list(pool.map(try_it, plans))
        assert [trial.plan for trial, _ in found] == plans
        for trial, work in found:
            assert trial.reason.isprintable()
            if (engine := trial.plan.engine) in BAD:
                status, reason = BAD[engine]
                assert (trial.status, trial.reason[: len(reason)]) == (status, reason)
                assert trial.agreement is None
                assert work is None
        ran = [(trial, work) for trial, work in found if work is not None]
        assert [trial.plan.engine for trial, _ in ran] == list(GOOD)
        measured, comparison = measure_in_turns(ran[:2], time_limit=0.5)
        for trial in measured:
            assert trial.status is Status.RAN
            assert trial.agreement.passed
            assert trial.load_seconds > 0
            assert trial.measurement.first_call_seconds == trial.first_call_seconds >= 0.0002
            assert median_seconds(trial) >= 0.0002
            assert 0 < trial.cores_used <= 1.01
        assert [one.name for one in comparison.measurements] == ["honest, batch 4", "equal, batch 4"]
    assert planted.nothing_left()


@pytest.mark.parametrize(
    ("engine", "status", "words"),
    [
        ("exits", Status.CRASHED, "exits: its process ended with exit code 7"),
        ("hang_in_call", Status.TIMED_OUT, "hang_in_call: no answer within 2 s"),
        ("grows", Status.OUT_OF_MEMORY, "grows: took more than 0.391 GiB of memory"),
    ],
)
def test_a_plan_that_fails_while_it_is_measured_fails_alone(engine, status, words, launcher, examples, planted):
    planted.set(calls=20, bytes=2**26)  # three of which are checked
    plans = [Plan(engine=name) for name in ("honest", engine, "slower")]
    with launcher(memory_limit=400 * 2**20) as several:
        runs = [tried(several, plan, examples) for plan in plans]
        if status is Status.TIMED_OUT:
            runs[1][1]._process.host._deadline = 2.0
        assert [trial.status for trial, _ in runs] == [Status.RAN] * 3
        (first, failed, last), comparison = measure_in_turns(runs, time_limit=1.0)
    assert (failed.status, failed.plan, failed.batch) == (status, plans[1], BATCH)
    assert failed.reason.startswith(words)
    assert failed.measurement is None
    assert [first.plan, last.plan] == plans[::2]
    assert comparison.measurements == (first.measurement, last.measurement)
    assert median_seconds(last) >= 1.03 * 0.0002
    assert planted.nothing_left()


def test_one_plan_or_none_is_compared_with_nothing(launcher, examples, planted):
    assert measure_in_turns([], time_limit=0.2) == ([], None)
    planted.set(calls=6)
    with launcher() as several:
        (trial,), comparison = measure_in_turns([tried(several, Plan(engine="honest"), examples)], time_limit=0.2)
        assert comparison is None
        assert trial.measurement.name == trial.name == "honest, batch 4"
        assert trial.memory > 0
        (trial,), comparison = measure_in_turns([tried(several, Plan(engine="exits"), examples)], time_limit=0.2)
        assert (comparison, trial.status) == (None, Status.CRASHED)


@pytest.mark.parametrize(("batch", "rows"), [(1, 8), (3, 9), (4, 8), (8, 16), (100, 200)])
def test_answers_are_checked_on_several_batches(batch, rows, dense, tmp_path):
    servable, _, _ = dense
    stored = Examples.store(tmp_path, servable, batch, seed=3)
    with np.load(stored.inputs) as inputs, np.load(stored.reference) as reference:
        assert inputs["0"].shape == (rows, 8)
        np.testing.assert_allclose(reference["0"], servable.reference([inputs["0"]])[0], rtol=1e-5, atol=1e-6)
        again = Examples.store(tmp_path / "..", servable, batch, seed=4)
        with np.load(again.inputs) as others:
            assert not np.array_equal(inputs["0"], others["0"])


def test_inputs_that_are_given_are_kept_and_no_two_batches_are_alike(dense, tmp_path):
    servable, _, _ = dense
    (given,) = servable.signature.random_inputs(2)
    for batch in (1, 2, 4):
        with np.load(Examples.store(tmp_path, servable, batch, [given]).inputs) as inputs:
            found = inputs["0"].reshape(-1, batch, 8)
        assert {row.tobytes() for row in found.reshape(-1, 8)} == {row.tobytes() for row in given}
        np.testing.assert_array_equal(found[0], given[np.arange(batch) % 2])
        assert not np.array_equal(found[0], found[1])
    with pytest.raises(ValueError, match="expected the input x"):
        Examples.store(tmp_path, servable, 2, [given[:, :5]])


def test_a_net_whose_outputs_are_not_finite_is_found_before_any_engine_starts(tmp_path):
    x = keras.Input((3,), name="x")
    servable = Servable.from_net(keras.Model(x, keras.layers.Activation("linear", name="y")(x / 0.0), name="bad"))
    message = r"^expected finite outputs of 'bad' in float32, .* Received: NaN or infinity in y; check the weights"
    with pytest.raises(EngineError, match=message) as raised:
        Examples.store(tmp_path, servable, 2)
    assert "\n" not in str(raised.value)


def test_inputs_enough_are_taken_as_they_are(dense, tmp_path):
    (given,) = dense[0].signature.random_inputs(20)
    with np.load(Examples.store(tmp_path, dense[0], 1, [given]).inputs) as inputs:
        np.testing.assert_array_equal(inputs["0"], given[:8])


def test_a_memory_of_one_is_found_with_two_rows(dense, launcher, planted, tmp_path):
    (given,) = dense[0].signature.random_inputs(2)
    with launcher() as several:
        for batch in (1, 2):
            stored = Examples.store(tmp_path, dense[0], batch, [given])
            trial, _ = tried(several, Plan(engine="memory_of_one"), stored)
            assert trial.status is Status.WRONG


@pytest.mark.parametrize(("initializer", "vary"), [("glorot_uniform", True), ("zeros", False)])
def test_whether_answers_vary(initializer, vary):
    layer = keras.layers.Dense(3, kernel_initializer=initializer, bias_initializer="ones")
    assert answers_vary(Servable.from_net(keras.Sequential([keras.Input((4,)), layer]))) is vary


def test_a_reason_is_one_printable_line():
    trial = failed_trial(Plan(engine="onnx"), 2, TrialError(Status.CRASHED, "\x1b[31mno\nluck\u202e" + "x" * 5000))
    assert trial.reason.startswith(" [31mno luck xxx")
    assert len(trial.reason) == 4000
    assert (trial.status, trial.name) == (Status.CRASHED, "onnx, batch 2")
    assert (trial.memory, trial.examples_per_second) == (None, 0)


SETTLING = [1, 2, 4, 3]
"""Calls of a millisecond, more and more, that are done in about 10."""

PEAK = MemoryPeak(resident=2, resident_before=1, device=None, of_whole_process=False)


class Remembers:
    """Work that writes down what it is asked, in a list of all."""

    cores_used = 1.5

    def __init__(self, name, told, clock):
        self.name, self.told, self.clock = name, told, clock

    def __call__(self):
        self.told.append((self.name, "called"))

    def timed(self, calls):
        self.told.append((self.name, calls))
        self.clock.milliseconds += calls
        return calls / 1000

    def memory(self):
        self.told.append((self.name, "memory"))
        return PEAK


class Clock:
    """Stands still unless something is timed."""

    milliseconds = 0

    def monotonic(self):
        return self.milliseconds / 1000


@pytest.fixture
def told():
    return []


@pytest.fixture
def works(told, monkeypatch):
    turns, clock = Turns(), Clock()
    monkeypatch.setattr("tfperf.trials.side_by_side.time", clock)

    def made(name):
        return InTurns(
            Remembers(name, told, clock),
            turns,
            lambda: told.append((name, "rests")),
            lambda: told.append((name, "wakes")),
            settling_seconds=0.0095,
        )

    return made("a"), made("b")


def without_settling(told):
    return [one for one in told if one[1] == 7 or isinstance(one[1], str)]


def test_one_rests_when_another_is_asked_and_not_before(works, told):
    a, b = works
    assert a.timed(7) == 0.007
    assert a.timed(7) == 0.007
    a()
    assert b.memory() == PEAK
    assert b.timed(7) == 0.007
    assert a.timed(7) == 0.007
    turn_of_a = [("a", "wakes"), ("a", 7), ("a", 7), ("a", "called"), ("a", "rests")]
    turn_of_b = [("b", "wakes"), ("b", "memory"), ("b", 7), ("b", "rests")]
    assert without_settling(told) == [*turn_of_a, *turn_of_b, ("a", "wakes"), ("a", 7)]


def test_a_call_that_settling_has_done_is_not_done_again(works, told):
    a, b = works
    for work in (a, a, b):
        work()
    assert [one for one in told if one[1] == "called"] == [("a", "called")]


def test_each_turn_begins_with_calls_that_nobody_times(works, told):
    a, b = works
    for work in (a, a, b, a):
        work.timed(7)
    for name, calls in {"a": [*SETTLING, 7, 7, *SETTLING, 7], "b": [*SETTLING, 7]}.items():
        assert [times for who, times in told if who == name and isinstance(times, int)] == calls


def test_it_is_work_that_times_itself(works):
    assert isinstance(works[0], TimesItself)
    assert works[0].cores_used == 1.5
