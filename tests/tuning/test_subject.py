"""What is tuned: models and inputs in every form."""

import keras
import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.errors import EngineError, ExportError
from tfperf.exports.opening import open_model
from tfperf.search.question import Question
from tfperf.tuning.subject import as_graph, read_subject

# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

ROWS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
OTHERS = np.arange(8, dtype="float32").reshape(4, 2)

CODE = """
import keras

def build():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2, name="y")], name="one")
"""


def one():
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2, name="y")], name="one")


def listed():
    first, second = keras.Input((3,), name="first"), keras.Input((2,), name="second")
    out = keras.layers.Concatenate()([first, second])
    return keras.Model([first, second], [keras.layers.Dense(2, name="a")(out), keras.layers.Dense(3, name="b")(out)])


def named():
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    out = keras.layers.Concatenate()([left, right])
    return keras.Model({"right": right, "left": left}, keras.layers.Dense(2, name="y")(out))


class Unopened(keras.Model):
    """What Keras can write, and no other process can open: its code is in a test."""

    def __init__(self):
        super().__init__(name="unopened")
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs["rows"]) * 2


class Unwritten(Unopened):
    """What Keras cannot write either."""

    def get_config(self):
        raise NotImplementedError


@pytest.fixture
def subject(tmp_path):
    """A function that reads a subject."""
    return lambda model, inputs=None, labels=None, **more: read_subject(model, inputs, labels, tmp_path, **more)


@pytest.mark.parametrize(
    ("build", "inputs", "arrays"),
    [
        (one, ROWS, [ROWS]),
        (one, [ROWS], [ROWS]),
        (one, {"x": ROWS}, [ROWS]),
        (one, ROWS.tolist(), None),
        (listed, [ROWS, OTHERS], [ROWS, OTHERS]),
        (listed, (ROWS, OTHERS), [ROWS, OTHERS]),
        (listed, {"second": OTHERS, "first": ROWS}, [ROWS, OTHERS]),
        (named, {"right": OTHERS, "left": ROWS}, [ROWS, OTHERS]),
    ],
)
def test_inputs_in_the_models_nest_or_by_name(subject, build, inputs, arrays):
    model = build()
    if arrays is None:
        with pytest.raises((ValueError, ExportError)):
            subject(model, inputs)
        return
    found = subject(model, inputs)
    assert found.rows == 4
    nest = {"left": ROWS, "right": OTHERS} if build is named else arrays if len(arrays) > 1 else ROWS
    for ours, wanted in zip(found.servable.reference(found.inputs), keras.tree.flatten(model(nest)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
    for ours, given in zip(found.inputs, arrays, strict=True):
        np.testing.assert_array_equal(ours, given)


def test_a_model_is_opened_elsewhere_with_its_weights(subject):
    found = subject(one(), ROWS)
    assert not found.graph_only
    assert (found.opened_as, found.seed) == ("keras.Model one", 0)
    again = open_model(found.origin.model)
    np.testing.assert_allclose(again.reference([ROWS])[0], found.servable.reference([ROWS])[0], rtol=1e-6)


def test_a_model_that_no_other_process_opens_is_its_graph(subject, tmp_path):
    found = subject(Unopened(), {"rows": ROWS})
    assert not found.graph_only
    graph = as_graph(found, tmp_path)
    assert graph.graph_only
    again = open_model(graph.origin.model)
    np.testing.assert_allclose(again.reference([ROWS])[0], found.servable.reference([ROWS])[0], rtol=1e-6)


def test_a_model_that_keras_cannot_write_is_its_graph(subject):
    found = subject(Unwritten(), {"rows": ROWS})
    assert found.graph_only
    again = open_model(found.origin.model)
    np.testing.assert_allclose(again.reference([ROWS])[0], found.servable.reference([ROWS])[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (ROWS[:, :2], "expected the input x"),
        (ROWS.astype("float64"), "expected the input x"),
        ([ROWS, ROWS], "expected"),
        (ROWS[:0], "expected an example at least of every input"),
        ({"x": ROWS[:0]}, "expected an example at least of x"),
        ([], "expected 1 input arrays"),
        ([ROWS, {"x": ROWS}], "expected 1 input arrays"),
    ],
    ids=["shape", "type", "two", "no rows", "no named rows", "none", "nest"],
)
def test_inputs_that_the_model_does_not_take(subject, inputs, words):
    with pytest.raises((ValueError, ExportError), match=words):
        subject(one(), inputs)


def test_inputs_of_a_named_model_go_by_their_names(subject, tmp_path):
    """The keys of a file are names of inputs, and never just an order."""
    (tmp_path / "named.py").write_text(CODE)
    name = f"{tmp_path / 'named.py'}:build"
    found = subject(name, {"x": ROWS}, inputs_file="rows.npz", seed=7)
    assert (found.opened_as, found.origin.model, found.origin.seed, found.rows) == (name, name, 7, 4)
    with pytest.raises((ValueError, ExportError), match="Found: z"):
        subject(name, {"z": ROWS})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros(3, int), r"expected whole numbers \(4,\) as labels"),
        (np.zeros((4, 1), int), r"expected whole numbers \(4,\)"),
        (np.zeros(4), "of float64"),
        (np.full(4, 2), "expected labels from 0 to 1 for"),
        (np.full(4, -1), "Received: -1 to -1"),
        (np.zeros(0, int), "expected labels of one output at least"),
        ({"z": np.zeros(4, int)}, "expected labels of the outputs y. Received: z"),
    ],
    ids=["length", "shape", "type", "too large", "negative", "none", "name"],
)
def test_labels_that_are_none_of_this_model(subject, labels, words):
    with pytest.raises(ValueError, match=words):
        subject(one(), ROWS, labels)


def test_labels_are_by_output(subject):
    found = subject(listed(), [ROWS, OTHERS], {"b": np.array([2, 0, 1, 2])})
    assert [label.shape for label in found.labels] == [(0,), (4,)]
    with pytest.raises(ValueError, match=r"expected labels by the names of outputs \(a, b\)"):
        subject(listed(), [ROWS, OTHERS], np.zeros(4, int))


def test_accuracy_is_that_of_the_net_itself(subject):
    model = one()
    right = np.asarray(model(ROWS)).argmax(axis=1)
    assert subject(model, ROWS, right).accuracy() == 1.0
    assert subject(model, ROWS, {"y": np.concatenate([1 - right[:1], right[1:]])}).accuracy() == 0.75
    assert subject(model, ROWS).accuracy() is None


def test_digests_tell_what_it_is_called_with(subject):
    model = one()
    labels = np.array([0, 1, 0, 1])
    given = [(), (ROWS,), (ROWS + 1,), (ROWS, labels), (ROWS, 1 - labels)]
    digests = [subject(model, *one).digests() for one in given]
    assert len({tuple(one) for one in digests}) == 5
    assert digests[0] == []
    assert subject(model, ROWS.copy()).digests() == digests[1]


def test_the_command_of_a_trial_says_all_that_it_takes(subject, tmp_path):
    (tmp_path / "my code.py").write_text(
        "import keras\ndef build(): return keras.Sequential([keras.Input((3,), name='x'), keras.layers.Dense(2)])"
    )
    model = f"{tmp_path / 'my code.py'}:build"
    found = subject(model, {"x": ROWS}, inputs_file="in put.npz", seed=3)
    plan = Plan(engine="graph", precision="bfloat16", transformations=("fold_batch_norm", "constant_weights"))
    start = f"tfperf engines '{tmp_path}/my code.py:build' --engine graph --precision bfloat16 --threads default"
    end = "--transform fold_batch_norm,constant_weights --inputs 'in put.npz' --seed 3"
    for fields, right in (
        ({"tolerance": 1e-3}, "--tolerance 0.001"),
        ({"tolerance": 1e-3, "same_top1": True}, "--tolerance 0.001 --same-top1"),
        ({"accuracy_drop": 0.01}, "--tolerance 0.999"),
    ):
        question = Question(threads=(1,), engines=("graph",), memory_limit=2**30, **fields)
        assert found.command(plan, 8, question) == f"{start} --batch 8 {right} {end}"
    question = Question(threads=(1,), engines=("graph",), memory_limit=2**30)
    by_program = subject(model, {"x": ROWS}).command(plan, 8, question)
    assert by_program.endswith("--transform fold_batch_norm,constant_weights --inputs INPUTS.npz")


def test_a_model_in_memory_is_run_alone_from_python(subject, tmp_path, monkeypatch):
    """The Python that a report gives for a plan runs as it stands."""
    net, question = one(), Question(threads=(1,), engines=("graph",), memory_limit=2**30)
    plan = Plan(engine="saved_model", batch=4, transformations=("constant_weights",))
    code = subject(net, ROWS, seed=3).command(plan, 4, question)
    assert code == (
        "from tfperf.engines import Plan, build; "
        "run = build(net, Plan(engine='saved_model', batch=4, transformations=('constant_weights',)), example=inputs)"
    )
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    names = {"net": net, "inputs": ROWS}
    exec(code, names)
    np.testing.assert_allclose(names["run"](ROWS)[0], np.asarray(net(ROWS)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [None, 3, np.ones(3), keras.layers.Dense(2)], ids=["None", "3", "array", "layer"])
def test_what_is_no_model(subject, model):
    with pytest.raises(TypeError, match=r"^expected a keras\.Model, or what names one\. Received: "):
        subject(model)


def test_strings_are_refused(subject):
    words = keras.Input((), dtype="string", name="words")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    with pytest.raises(EngineError, match="expected a net from numbers to numbers"):
        subject(keras.Model(words, lookup(words)))
