"""Wrong answers are never taken for answers, and what is right is counted."""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfperf import get_net
from tfperf.engines import PRECISIONS, TOLERANCES, Plan, Runner, check_runner
from tfperf.engines.checking import WrongAnswersError, accuracy_of, check_labels, check_same_top1
from tfperf.errors import EngineError, MeasurementError
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature, TensorForm

X = np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2)
SIGNATURE = Signature(
    inputs=(TensorForm(name="x", shape=(None, 2), dtype="float32"),),
    outputs=tuple(TensorForm(name=name, shape=(None, 2), dtype="float32") for name in ("double", "half")),
)


def right(x):
    return 2 * x, x / 2


def runner(run, precision="float32"):
    return Runner(Plan(engine="litert", precision=precision), SIGNATURE, run, proof={})


def spoiled(value):
    def run(x):
        double, half = right(x)
        half[-1, -1] = value
        return double, half

    return run


def test_right_answers_pass():
    agreement = check_runner(runner(right), [X], right(X))
    assert agreement.passed
    assert (agreement.relative_error, agreement.tolerance) == (0, TOLERANCES["float32"])


@pytest.mark.parametrize(
    "run",
    [
        spoiled(np.nan),
        spoiled(np.inf),
        spoiled(0.51),
        lambda x: right(x)[::-1],
        lambda x: (2 * x, x[:-1] / 2),
        lambda x: (2 * x, x[0] / 2),
        lambda x: (0 * x, 0 * x),
    ],
    ids=["nan", "infinity", "one number", "order", "a row less", "another shape", "zeros"],
)
def test_wrong_answers_are_an_error_in_one_line(run):
    for batch in (None, 2):
        with pytest.raises(
            WrongAnswersError, match=r"^wrong answers: litert( DISAGREES: relative error|: an output is not)"
        ) as told:
            check_runner(runner(run), [X], right(X), batch=batch)
        assert str(told.value).isprintable()


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 9])
def test_batches_are_of_the_size_that_is_asked_for(batch):
    sizes = []

    def run(x):
        sizes.append(len(x))
        return right(x)

    assert check_runner(runner(run), [X], right(X), batch=batch).passed
    assert sizes == [batch] * -(-len(X) // batch)


def test_a_runner_that_answers_only_its_first_batch_is_wrong():
    remembered = []

    def run(x):
        remembered.append(right(x))
        return remembered[0]

    with pytest.raises(WrongAnswersError, match="DISAGREES"):
        check_runner(runner(run), [X], right(X), batch=2)


def test_the_largest_answer_may_have_to_be_the_same():
    one = Signature(inputs=SIGNATURE.inputs, outputs=SIGNATURE.outputs[:1])
    reference = np.array([[1, 2], [2, 1], [1, 1.0001], [5, 0]], "float32")

    def found(*swapped, **options):
        answers = reference.copy()
        answers[list(swapped)] = answers[list(swapped), ::-1]
        close = Runner(Plan(engine="litert"), one, lambda x: (answers,), proof={})
        return check_runner(close, [X], [reference], 1e-4, **options)

    assert found(same_top1=True).same_top1_share == 1
    assert found(2).same_top1_share == 0.75
    with pytest.raises(WrongAnswersError, match=r"^wrong answers: the largest is the same in 75\.0% of rows$"):
        found(2, same_top1=True)


def swapped_last(x):
    double, half = right(x)
    half[-1] = half[-1, ::-1]
    return double, half


def test_the_largest_answers_of_all_outputs_may_have_to_be_the_same():
    assert check_runner(runner(right), [X], right(X), same_top1=True).same_top1_share == 1
    assert check_runner(runner(swapped_last), [X], right(X), 10.0).same_top1_share == 7 / 8
    with pytest.raises(WrongAnswersError, match=r"^wrong answers: the largest is the same in 87\.5% of rows$"):
        check_runner(runner(swapped_last), [X], right(X), 10.0, same_top1=True)


def test_one_row_of_many_is_not_all_of_them():
    tokens = TensorForm(name="tokens", shape=(None, 5000, 2), dtype="float32")
    reference = np.tile(np.array([0, 1], "float32"), (4, 5000, 1))
    answers = reference.copy()
    answers[3, -1] = [1, 0]
    other = Runner(
        Plan(engine="litert"), Signature(inputs=SIGNATURE.inputs, outputs=(tokens,)), lambda x: (answers,), proof={}
    )
    with pytest.raises(WrongAnswersError, match=r"^wrong answers: the largest is the same in 99\.9% of rows$"):
        check_runner(other, [X], [reference], 10.0, same_top1=True)


@pytest.mark.parametrize("shape", [(None, 2), (None, None), (None, 7, 3), (4, 2), (3,)])
def test_largest_answers_can_be_compared_where_an_output_has_rows(shape):
    check_same_top1(scores((None,), shape))


@pytest.mark.parametrize(("shape", "dtype"), [((None,), "float32"), ((None, 1), "float32"), ((None, 3), "int64")])
def test_largest_answers_that_are_not_there_cannot_be_compared(shape, dtype):
    form = TensorForm(name="y", shape=shape, dtype=dtype)
    signature = Signature(inputs=SIGNATURE.inputs, outputs=(form,))
    words = f"expected an output with several scores in a row, to compare the largest. Received: {form}"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        check_same_top1(signature)
    answers = np.zeros([4, *shape[1:]], dtype)
    none = Runner(Plan(engine="litert"), signature, lambda x: (answers,), proof={})
    assert check_runner(none, [X], [answers], same_top1=True).same_top1_share is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_tolerance_is_that_of_the_precision(precision):
    limit = TOLERANCES[precision]
    off = [lambda x, share=share: (2 * x * (1 + share * limit), x / 2) for share in (0.9, 1.1)]
    assert check_runner(runner(off[0], precision), [X], right(X)).tolerance == limit
    with pytest.raises(EngineError, match="DISAGREES"):
        check_runner(runner(off[1], precision), [X], right(X))
    assert check_runner(runner(off[1], precision), [X], right(X), tolerance=2 * limit).passed


def test_a_reference_that_is_not_finite_decides_nothing():
    with pytest.raises(MeasurementError, match="reference for 'litert'"):
        check_runner(runner(spoiled(np.nan)), [X], spoiled(np.nan)(X))
    with pytest.raises(ValueError, match="expected the input x"):
        check_runner(runner(right), [X.astype("float64")], right(X))


def test_a_conversion_that_gives_nan_without_an_error_is_refused():
    """`from_concrete_functions` with the net, as documented: TensorFlow 2.21 loses the weights of a Keras 3 net."""
    from ai_edge_litert.interpreter import Interpreter

    net = get_net("mlp", seed=0)
    servable = Servable.from_net(net)
    concrete = tf.function(net).get_concrete_function(tf.TensorSpec((1, 512), "float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = tf.lite.TFLiteConverter.from_concrete_functions([concrete], net).convert()
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(x):
        interpreter.set_tensor(taken["index"], x)
        interpreter.invoke()
        return (interpreter.get_tensor(given["index"]),)

    arrays = servable.signature.random_inputs(1)
    wrong = Runner(Plan(engine="litert"), servable.signature, run, proof={})
    with pytest.raises(EngineError, match=r"^wrong answers: litert"):
        check_runner(wrong, arrays, servable.reference(arrays))


NONE = np.empty(0, np.int64)


def scores(*shapes):
    forms = tuple(TensorForm(name=f"y{at}", shape=shape, dtype="float32") for at, shape in enumerate(shapes))
    return Signature(inputs=(TensorForm(name="x", shape=(None, 2), dtype="float32"),), outputs=forms)


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 2**32 - 1), st.sampled_from(["uint8", "int32", "int64"]))
def test_it_is_the_share_of_rows_whose_largest_answer_is_the_label(rows, classes, seed, dtype):
    generator = np.random.default_rng(seed)
    answers = generator.standard_normal((rows, classes)).astype("float32")
    labels = generator.integers(0, classes, rows).astype(dtype)
    check_labels([labels], scores((None, classes)), rows)
    expected = sum(int(np.argmax(row)) == label for row, label in zip(answers, labels, strict=True)) / rows
    assert accuracy_of([answers], [labels]) == pytest.approx(expected)
    assert accuracy_of([answers], [answers.argmax(axis=1)]) == 1
    assert accuracy_of([answers], [(answers.argmax(axis=1) + 1) % classes]) == 0


def test_outputs_without_labels_do_not_count_and_larger_ones_count_more():
    eye = np.eye(3, dtype="float32")
    tokens = np.stack([eye, eye])  # (2, 3, 3): each place has its own answer
    labels = [np.array([0, 2]), NONE, np.array([[0, 1, 2], [0, 1, 0]])]
    answers = [eye[:2], np.ones((2, 5), "float32"), tokens]
    check_labels(labels, scores((None, 3), (None, 5), (None, 3, 3)), 2)
    check_labels(labels, scores((None, 3), (None, 5), (None, None, 3)), 2)
    assert accuracy_of(answers, labels) == pytest.approx((1 + 5) / (2 + 6))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("output", [0, 1])
def test_an_answer_that_is_not_finite_is_an_error(value, output):
    answers = [np.eye(2, dtype="float32"), np.eye(2, dtype="float32")]
    answers[output][1, 0] = value
    with pytest.raises(EngineError, match=r"^expected finite answers to the labelled inputs\. Received: NaN or infi"):
        accuracy_of(answers, [np.array([0, 1]), NONE])


@pytest.mark.parametrize(
    ("labels", "shape", "message"),
    [
        (np.array([0, 1]), (None,), r"^expected an output with a score for each of several classes\. .* y0 \(any\)"),
        (np.array([0, 1]), (None, 1), "score for each of several classes"),
        (np.array([0, 1]), (None, None), "score for each of several classes"),
        (np.array([0.0, 1.0]), (None, 3), r"^expected whole numbers \(2,\) as labels of y0 .* \(2,\) of float64$"),
        (np.array([True, False]), (None, 3), "of bool$"),
        (np.array([0, 1, 2]), (None, 3), r"whole numbers \(2,\) .* Received: \(3,\) of int64$"),
        (np.array([[0], [1]]), (None, 3), r"Received: \(2, 1\)"),
        (np.array([0, 1]), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2,\)"),
        (np.zeros((2, 5), int), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2, 5\)"),
        (np.zeros((2, 1), int), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2, 1\)"),
        (np.array([0, 3]), (None, 3), r"^expected labels from 0 to 2 for y0 \(any, 3\) float32\. Received: 0 to 3$"),
        (np.array([-1, 2]), (None, 3), "Received: -1 to 2$"),
        (NONE, (None, 3), r"^expected labels of one output at least\. Received: none$"),
    ],
)
def test_labels_that_are_no_classes_of_the_output_are_refused(labels, shape, message):
    with pytest.raises(ValueError, match=message):
        check_labels([labels], scores(shape), 2)
