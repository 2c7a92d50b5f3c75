"""Every engine answers as the net does, in each precision that it offers, whatever the form of the net.

Those that compile C have tests of their own: test_c_api.py and test_xla_aot.py.
"""

import sys

import numpy as np
import pytest

from tfperf.engines import ENGINES, Plan, build, check_runner, find_engine
from tfperf.errors import EngineError

INSIDE = [engine for engine in ENGINES if engine.name not in ("c_api", "xla_aot")]
NAMES = [engine.name for engine in INSIDE]

FLOAT32 = "float32"
LOWER = [(engine.name, precision) for engine in INSIDE for precision in engine.precisions if precision != FLOAT32]


def check_proof(runner):
    assert {"precision", "threads"} <= runner.proof.keys()
    assert all(words and words.isprintable() for words in runner.proof.values())
    loads = find_engine(runner.plan.engine).format is not None
    assert (runner.size is not None) == loads
    assert runner.size != 0


@pytest.mark.parametrize("net", ["cnn", "two", "lists", "subclass", "signs", "shift"])
@pytest.mark.parametrize("engine", NAMES)
def test_its_answers_are_the_nets_at_any_batch(engine, net, servable_of, cache):
    servable = servable_of(net)
    if net == "lists":  # the one whose order is not that of its names
        assert [form.name for form in servable.signature.inputs] == ["second", "first"]
        assert [form.name for form in servable.signature.outputs] == ["two", "multiply"]
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        check_proof(runner)
        for batch in (1, 7, 1):
            arrays = servable.signature.random_inputs(batch, seed=batch)
            expected = servable.reference(arrays)
            answers = runner(*arrays)
            assert [one.dtype for one in answers] == [form.dtype for form in servable.signature.outputs]
            assert [one.shape for one in answers] == [one.shape for one in expected]
            assert check_runner(runner, arrays, expected).relative_error <= 1e-4
            assert len(arrays[0]) == batch


@pytest.mark.parametrize("engine", NAMES)
def test_names_may_be_alike(engine, cache):
    """An input's and an output's, two outputs', and two inputs' but for capitals, which TensorFlow makes small."""
    import keras

    from tfperf.exports.servable import Servable

    inputs = {name: keras.Input((4,), name=name) for name in ("image", "Image")}
    both = keras.layers.Add()([keras.layers.Dense(4)(x) for x in inputs.values()])
    outputs = {"image_1": keras.layers.Dense(4)(both), "twice": [both, keras.layers.ReLU()(both)]}
    servable = Servable.from_net(keras.Model(inputs, outputs, name="alike"))
    assert [form.name for form in servable.signature.inputs] == ["Image_0", "image_1"]
    assert [form.name for form in servable.signature.outputs] == ["image_1", "twice_1", "twice_2"]
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        arrays = servable.signature.random_inputs(3)
        assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-5


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "litert"])
def test_a_net_that_loops_over_time_is_run_at_any_batch(engine, servable_of, cache):
    servable = servable_of("recurrent")
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        for batch in (1, 7):
            arrays = servable.signature.random_inputs(batch, seed=batch)
            assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-4


def test_openvino_sends_nothing_of_a_net(servable_of, cache):
    with build(servable_of("two"), Plan(engine="openvino"), cache=cache):
        assert "openvino" in sys.modules
        assert "openvino_telemetry" not in sys.modules


def test_litert_runs_it_at_a_fixed_batch_only(servable_of, cache):
    servable = servable_of("recurrent")
    with pytest.raises(EngineError, match="cannot take the net 'recurrent': ConverterError"):
        build(servable, Plan(engine="litert"), cache=cache)
    with build(servable, Plan(engine="litert", batch=3, transformations=("fixed_batch",)), cache=cache) as runner:
        arrays = servable.signature.random_inputs(3)
        assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-4


def test_predict_says_that_it_passes_one_argument(cache):
    import keras

    from tfperf.exports.servable import Servable

    class Sum(keras.Model):
        def call(self, left, right):
            return left + right

    ones = np.ones((2, 3), "float32")
    servable = Servable.from_net(Sum(name="sum"), (ones, ones))
    with pytest.raises(EngineError, match=r"^predict passes one argument to a net's call. 'sum' takes 2$"):
        build(servable, Plan(engine="predict"), cache=cache)


@pytest.mark.parametrize("engine", ["eager", "predict", "graph"])
@pytest.mark.parametrize("wrap", [lambda y: {"y": y}, lambda y: (y,), lambda y: [y], lambda y: {"a": {"b": [y]}}])
def test_a_single_output_may_be_in_a_structure(engine, wrap, cache):
    import keras

    from tfperf.exports.servable import Servable

    class Wrapping(keras.Model):
        def __init__(self):
            super().__init__(name="wrapping")
            self.dense = keras.layers.Dense(3)

        def call(self, inputs):
            return wrap(self.dense(inputs))

    servable = Servable.from_net(Wrapping(), np.ones((2, 4), "float32"))
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        arrays = servable.signature.random_inputs(5)
        (answer,) = runner(*arrays)
        assert (answer.shape, answer.dtype) == ((5, 3), np.float32)
        assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-5


@pytest.mark.parametrize(("engine", "precision"), LOWER)
def test_lower_precisions_agree_within_their_tolerances(engine, precision, servable_of, cache):
    servable = servable_of("cnn")
    try:
        runner = build(servable, Plan(engine=engine, precision=precision), cache=cache)
    except EngineError as error:
        words = str(error)
        if engine == "openvino" and words.startswith(f"expected {precision} from OpenVINO, which on this CPU chose "):
            pytest.skip(words)
        raise
    with runner:
        check_proof(runner)
        assert precision.removesuffix("_static") in runner.proof["precision"]
        for batch in (1, 7):
            arrays = servable.signature.random_inputs(batch, seed=batch)
            agreement = check_runner(runner, arrays, servable.reference(arrays))
            assert agreement.relative_error > 1e-6  # else it computes in float32
            assert {one.dtype.name for one in runner(*arrays)} == {FLOAT32}


@pytest.mark.parametrize("engine", ["eager", "predict", "graph", "xla", "saved_model", "frozen"])
def test_a_mixed_net_is_run_in_float32_and_keeps_its_policy(engine, servable_of, cache):
    servable = servable_of("mixed")
    net = servable.net
    arrays = servable.signature.random_inputs(7)
    before = net.predict(arrays[0], verbose=0)  # with what Keras keeps of a net in its own policy
    expected = servable.reference(arrays)
    assert np.abs(before - expected[0]).max() > 1e-4 * np.abs(expected[0]).max()
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        assert check_runner(runner, arrays, expected).relative_error <= 1e-4
        assert [layer.compute_dtype for layer in net.layers] == ["bfloat16"] * 3
    np.testing.assert_array_equal(net.predict(arrays[0], verbose=0), before)


@pytest.mark.parametrize("engine", ["eager", "graph", "saved_model"])
@pytest.mark.parametrize("net", ["signs", "mixed"])
def test_answers_in_lower_precision_have_the_types_of_the_signature(engine, net, servable_of, cache):
    servable = servable_of(net)
    with build(servable, Plan(engine=engine, precision="bfloat16"), cache=cache) as runner:
        answers = runner(*servable.signature.random_inputs(3))
    assert [answer.dtype for answer in answers] == [form.dtype for form in servable.signature.outputs]


@pytest.mark.parametrize("engine", NAMES)
def test_inputs_may_lie_in_memory_as_they_like(engine, servable_of, cache):
    servable = servable_of("cnn")
    (images,) = servable.signature.random_inputs(6, seed=1)
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        for laid_out in (np.asfortranarray(images), images[::2], images[:, ::-1]):
            assert check_runner(runner, [laid_out], servable.reference([laid_out])).passed


@pytest.mark.parametrize("engine", NAMES)
def test_answers_of_two_calls_are_apart(engine, servable_of, cache):
    servable = servable_of("two")
    inputs = [servable.signature.random_inputs(2, seed=seed) for seed in (1, 2)]
    with build(servable, Plan(engine=engine), cache=cache) as runner:
        first, second = (runner(*arrays) for arrays in inputs)
        for answers, arrays in ((first, inputs[0]), (second, inputs[1])):
            for one, other in zip(answers, servable.reference(arrays), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)
