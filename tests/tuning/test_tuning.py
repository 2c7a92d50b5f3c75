"""`tfperf.tune` from Python, with engines whose answers and speed are known."""

import keras
import numpy as np
import pytest
import rich

from tfperf.engines import Plan
from tfperf.engines.catalog import DEFAULTS
from tfperf.errors import SearchError, TfperfError
from tfperf.measure.results import read_document
from tfperf.search.outcome import Outcome
from tfperf.search.question import Question
from tfperf.trials.trial import Status, Trial
from tfperf.tuning import Tuned, tune
from tfperf.tuning.deploying import load_deployed

pytestmark = pytest.mark.usefixtures("brief", "planted")


class Sums(keras.Model):
    """Its code is in a test, where no other process finds it."""

    def __init__(self):
        super().__init__(name="sums")
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs) + keras.ops.sum(inputs, axis=-1, keepdims=True)


class Stops:
    """A watcher that presses Ctrl-C when so many trials are finished."""

    def __init__(self, after):
        self.left, self.names = after, []

    def phase(self, words):
        pass

    def measuring(self, progress):
        pass

    def looked(self, trial, best, left):
        self.names.append(trial.name)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture
def tuned(dense):
    """A function that tunes the dense net, whose conversions are known."""
    _, origin, cache = dense

    def tuned(*engines, **options):
        return tune(origin.model, **{"engines": engines, "threads": 1, "cache": cache, "memory_limit": 2**30} | options)

    return tuned


# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_model_in_memory(planted, tmp_path):
    """What wins answers as the model does, here and from files; and all is in a file."""
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, name="y")]
    model = keras.Sequential([keras.Input((6,), name="x"), *layers], name="mine")
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    found = tune(model, rows, engines=("light", "honest", "wrong"), threads=1, memory_limit=2**32, seed=6)
    assert found.outcome.winner == "honest, 1 thread, batch 5"
    assert (found.outcome.model, found.outcome.opened_as, found.outcome.ended) == (
        "mine",
        "keras.Model mine",
        "finished",
    )
    assert (found.outcome.inputs, found.outcome.labels, found.outcome.seed) == ("given from Python", None, 6)
    assert found.outcome.doubts == ()
    assert found.best.plan == Plan(engine="honest", threads=1)
    wanted = np.array(keras.ops.convert_to_numpy(model(rows)))
    np.testing.assert_allclose(found.best.runner()(rows)[0], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load_deployed(found.export(tmp_path / "d"))(rows)[0], wanted, rtol=1e-4, atol=1e-5)
    found.to_json(tmp_path / "r.json")
    assert read_document(tmp_path / "r.json", Outcome) == found.outcome
    found.report(tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith("# tfperf tune: mine\n")
    for words in ("tfperf.tune(net, inputs=inputs, ", "memory_limit=4294967296, seed=6)", "run = build(net, Plan("):
        assert words in (tmp_path / "r.md").read_text()
    assert "honest, 1 thread: " in str(found)
    assert repr(found) == f"<Tuned: {found}>"
    rich.print(found.table(), found.trials())
    assert planted.nothing_left()


def test_a_model_whose_code_no_other_process_has(planted):
    keras.utils.set_random_seed(5)
    rows = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    model = Sums()
    found = tune(model, rows, engines=("frozen", "eager"), threads=1, transformations=(), memory_limit=2**32)
    assert [doubt.name for doubt in found.outcome.doubts] == ["no_code"]
    assert found.best.plan.engine == "frozen"
    wanted = np.array(keras.ops.convert_to_numpy(model(rows)))
    with pytest.warns(UserWarning, match="fresh process"):
        runner = found.best.runner()
    np.testing.assert_allclose(runner(rows)[0], wanted, rtol=1e-4, atol=1e-5)
    assert planted.nothing_left()


def test_what_users_have_is_measured_beside_the_winner(tuned, planted, monkeypatch):
    monkeypatch.setattr("tfperf.search.space.DEFAULTS", DEFAULTS)
    outcome = tuned("honest", "wrong", memory_limit=2**32).outcome
    assert set(outcome.defaults) == {"predict, batch 1", "eager, batch 1", "graph, batch 1"}
    assert outcome.winner in ("honest, 1 thread, batch 1", "graph, batch 1")
    in_final, in_confirmation = (
        {one.name for one in comparison.measurements} for comparison in (outcome.final, outcome.confirmation)
    )
    assert in_final >= {outcome.winner, *outcome.defaults}
    assert in_confirmation >= {outcome.winner, "graph, batch 1"}  # the best of what users have
    assert outcome.speed_up("predict, batch 1").low > 1
    assert planted.nothing_left()


def test_labels_and_the_accuracy_that_may_be_lost(tuned, dense):
    """A net whose labels are its own answers finds all of them; `exchanged` misses a tenth."""
    (rows,) = dense[0].signature.random_inputs(100, seed=5)
    rows[:, 0] = np.where(np.arange(100) % 10 == 0, 1.0, np.minimum(rows[:, 0], 0.5))
    labels = dense[0].reference([rows])[0].argmax(axis=1)
    options = {"inputs": {"x": rows}, "labels": {"y": labels}}
    strict = tuned("exchanged", "light", accuracy_drop=0.09, **options).outcome
    assert strict.reference_accuracy == 1.0
    assert strict.trial("exchanged, 1 thread, batch 1").status is Status.WRONG
    assert strict.winner == "light, 1 thread, batch 1"
    loose = tuned("exchanged", "light", accuracy_drop=0.1, **options).outcome
    assert loose.trial("exchanged, 1 thread, batch 1").accuracy == pytest.approx(0.9)
    assert loose.winner == "exchanged, 1 thread, batch 1"


def test_ctrl_c_gives_the_best_so_far_and_the_same_call_goes_on(tuned, planted):
    engines = ("light", "wrong", "honest", "equal")
    stopped = tuned(*engines, watcher=(first := Stops(2)))
    assert stopped.outcome.ended == "interrupted"
    assert [doubt.name for doubt in stopped.outcome.doubts] == ["not_confirmed"]
    assert stopped.outcome.winner is None or stopped.outcome.winner in first.names
    assert (stopped.outcome.final, stopped.outcome.confirmation) == (None, None)
    assert planted.nothing_left()
    finished = tuned(*engines, watcher=(second := Stops(0)))
    assert finished.outcome.ended == "finished"
    assert 2 <= len(first.names) < len(engines)  # those that ran beside the second may have finished, too
    assert len(first.names) + len(second.names) == len(engines)
    assert {*first.names, *second.names} == {trial.name for trial in finished.outcome.trials}
    tuned(*engines, watcher=(known := Stops(0)))
    assert known.names == []
    tuned(*engines, watcher=(fresh := Stops(0)), fresh=True)
    assert len(fresh.names) == 4
    finished.forget()
    tuned(*engines, watcher=(forgotten := Stops(0)))
    assert len(forgotten.names) == 4


def test_the_batch_is_that_of_the_inputs_and_several_are_for_throughput(tuned, dense):
    rows = dense[0].signature.random_inputs(3)
    assert tuned("honest", inputs=list(rows)).outcome.winner == "honest, 1 thread, batch 3"
    found = tuned("honest", inputs=list(rows), objective="throughput", batch=[8, 1, 8])
    assert found.outcome.question.batches == (1, 8)
    assert found.outcome.winner == "honest, 1 thread, batch 8"


def test_where_nothing_runs_there_is_no_best(tuned, tmp_path):
    found = tuned("nan", "segfault")
    assert (found.outcome.winner, found.outcome.best) == (None, None)
    for ask in (lambda: found.best, lambda: found.export(tmp_path / "d")):
        with pytest.raises(SearchError, match=r"^expected a plan that runs: No plan ran") as told:
            ask()
        assert len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": np.zeros(2, int)}, "expected labels and accuracy_drop together"),
        ({"accuracy_drop": 0.1}, "expected labels and accuracy_drop together"),
        ({"labels": np.zeros(2, int), "accuracy_drop": 0.1}, "expected the inputs that the labels belong to"),
        ({"batch": (1, 2)}, "expected one batch size for the latency of a call"),
        ({"batch": (1, 2), "objective": ("throughput", "latency")}, "expected one batch size"),
        ({"batch": 0}, "expected whole numbers from 1"),
        ({"threads": 0}, "expected whole numbers from 1"),
        ({"threads": ()}, "threads"),
        ({"objective": "speed"}, "objectives"),
        ({"objective": ()}, "objectives"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"engines": ()}, "engines"),
        ({"precisions": ("float8",)}, "precisions"),
        ({"transformations": ("prune",)}, "transformations"),
        ({"engines": ("torch",)}, "Received: torch"),
        ({"trial_seconds": 0}, "trial_seconds"),
        ({"memory_limit": -5}, "memory_limit"),
        ({"inputs": {"z": np.ones((2, 8), "float32")}}, "Found: z"),
    ],
    ids=str,
)
def test_a_question_that_makes_no_sense_is_refused_before_any_process(tuned, planted, options, words):
    with pytest.raises((ValueError, TfperfError), match=words):
        tuned(**{"engines": ("honest",)} | options)
    assert planted.left() == []


def test_largest_answers_of_a_net_that_has_none_are_refused_before_any_process(planted):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, name="price")])
    with pytest.raises(ValueError, match=r"^expected an output with several scores in a row.*price"):
        tune(model, engines=("honest",), threads=1, same_top1=True)
    assert planted.left() == []


def test_a_net_whose_outputs_are_not_finite_is_said_once_before_any_trial(planted):
    x = keras.Input((6,), name="x")
    model = keras.Model(x, keras.layers.Dense(3, name="y")(keras.ops.log(-keras.ops.abs(x))), name="bad")
    watcher = Stops(0)
    with pytest.raises(TfperfError, match=r"^expected finite outputs of 'bad' in float32") as told:
        tune(model, engines=("honest", "light"), threads=1, memory_limit=2**32, watcher=watcher)
    assert len(str(told.value).splitlines()) == 1
    assert watcher.names == []
    assert planted.nothing_left()


def test_a_notebook_shows_no_markup_of_others(dense, environment):
    plan = Plan(engine="honest")
    name = "<script>alert(1)</script>"
    trial = Trial(plan=plan, batch=1, status=Status.REFUSED, reason="<img src=x onerror=alert(2)>")
    question = Question(threads=(1,), engines=("honest",), memory_limit=2**30)
    outcome = Outcome(
        model=name, opened_as="<b>file.py", question=question, environment=environment, seconds=1.0, trials=(trial,)
    )
    shown = Tuned(outcome, dense[0])._repr_html_()
    assert "&lt;script&gt;" in shown
    for markup in (name, "<img", "<b>file"):
        assert markup not in shown
