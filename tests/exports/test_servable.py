"""One function from named tensors to named tensors, whatever the net."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import EngineError, ExportError
from tfperf.exports import export
from tfperf.exports.keras_nets import computing_in, layers_to_switch
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature, TensorForm


def structured(net, arrays):
    """What the net itself answers, in the order of the servable's inputs."""
    nest = arrays[0] if len(arrays) == 1 else keras.tree.pack_sequence_as(net.input, list(arrays))
    return keras.tree.flatten(net(nest, training=False))


@pytest.mark.parametrize("batch", [1, 7])
def test_it_answers_as_the_net_does(net, batch):
    servable = Servable.from_net(net)
    arrays = servable.signature.random_inputs(batch, seed=3)
    ours = servable.reference(arrays)
    tolerance = 1e-2 if net.name == "half" else 1e-6
    for a, b in zip(ours, structured(net, arrays), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, tf.cast(b, tf.float32), atol=tolerance, rtol=tolerance)


def test_a_mixed_net_computes_in_float32(net):
    servable = Servable.from_net(net)
    assert {form.dtype for form in servable.signature.outputs} == {"float32"}
    types = {tensor.dtype for op in servable.trace().graph.get_operations() for tensor in op.outputs}
    assert not types & {tf.bfloat16, tf.float16}
    if net.name == "half":
        assert net.layers[0].compute_dtype == "bfloat16"  # as it was


def test_names_come_from_dictionaries_layers_and_inputs():
    from tests.exports.conftest import as_lists, functional

    two = Servable.from_net(functional()).signature
    assert [form.name for form in two.inputs] == ["floats", "ids"]
    assert [form.name for form in two.outputs] == ["logits", "pooled"]
    lists = Servable.from_net(as_lists()).signature
    assert [form.name for form in lists.inputs] == ["second", "first"]
    assert [form.name for form in lists.outputs] == ["total", "dense"]


def test_a_subclass_needs_an_example_or_a_call(pair):
    net, example = pair
    with pytest.raises(ExportError, match="example inputs"):
        Servable.from_net(net)
    servable = Servable.from_net(net, example)
    assert [(form.name, form.dtype, form.shape) for form in servable.signature.inputs] == [
        ("floats", "float32", (None, 2)),
        ("ids", "int32", (None, 7)),
    ]
    ours = servable.reference([example["floats"], example["ids"]])
    for a, b in zip(ours, net(example), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


class Apart(keras.Model):
    """A subclass whose call takes two arguments."""

    def __init__(self):
        super().__init__(name="apart")
        self.embed, self.dense = keras.layers.Embedding(20, 4), keras.layers.Dense(4)

    def call(self, ids, features, training=False):
        return self.embed(ids)[:, 0] * self.dense(features)


@pytest.mark.parametrize("given", [tuple, lambda arrays: dict(zip(("ids", "features"), arrays, strict=True))])
def test_a_call_may_take_several_arguments(given):
    arrays = np.arange(6).reshape(2, 3), np.linspace(0, 1, 10, dtype="float32").reshape(2, 5)
    net = Apart()
    servable = Servable.from_net(net, given(arrays))
    assert [(form.name, form.dtype, form.shape) for form in servable.signature.inputs] == [
        ("ids", "int64", (None, 3)),
        ("features", "float32", (None, 5)),
    ]
    np.testing.assert_allclose(servable.reference(arrays)[0], net(*arrays), rtol=1e-6)


def test_a_pair_for_one_argument_stays_one():
    class Total(keras.Model):
        def call(self, both, training=False):
            return both[0] + both[1]

    servable = Servable.from_net(Total(), (np.ones((2, 3), "float32"), np.ones((2, 3), "float32")))
    assert len(servable.pack(servable.signature.inputs)) == 1


def test_preprocessing_and_softmax_are_part_of_it(small):
    scale = keras.Sequential([keras.Input((5,), dtype="uint8", name="bytes"), keras.layers.Rescaling(1 / 255)])
    servable = Servable.from_net(small).with_softmax().after(Servable.from_net(scale))
    (form,) = servable.signature.inputs
    assert (form.name, form.dtype) == ("bytes", "uint8")
    x = np.arange(10, dtype="uint8").reshape(2, 5)
    (ours,) = servable.reference([x])
    np.testing.assert_allclose(ours, tf.nn.softmax(small(x / np.float32(255))), rtol=1e-6)
    np.testing.assert_allclose(ours.sum(axis=1), 1, rtol=1e-6)


def test_what_does_not_fit_together_is_refused(small):
    ids = keras.Sequential([keras.Input((5,), dtype="int32"), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(ExportError, match=r"to give features .* It gives"):
        Servable.from_net(small).after(Servable.from_net(ids))
    with pytest.raises(ExportError, match="expected logits"):
        Servable.from_net(ids).with_softmax()
    with pytest.raises(TypeError, match=r"expected a keras\.Model"):
        Servable.from_net("small")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "expected 1 input arrays"),
        ([np.ones((2, 4), "float32")], r"\(2, 4\)"),
        ([np.ones((2, 5))], "float64"),
        ([np.array([["a"] * 5])], "<U1"),
    ],
)
def test_wrong_inputs_are_named(small, arrays, message):
    with pytest.raises(ValueError, match=message):
        Servable.from_net(small).reference(arrays)


def test_a_saved_model_is_one_too(net, tmp_path):
    servable = Servable.from_net(net)
    servable.save(tmp_path / "saved")
    again = Servable.from_saved_model(tmp_path / "saved")
    assert again.name == tmp_path.name
    assert {*again.signature.inputs} == {*servable.signature.inputs}
    arrays = servable.signature.random_inputs(3)
    ours = dict(zip([form.name for form in servable.signature.outputs], servable.reference(arrays), strict=True))
    order = [servable.signature.inputs.index(form) for form in again.signature.inputs]
    theirs = again.reference([arrays[index] for index in order])
    for form, answer in zip(again.signature.outputs, theirs, strict=True):
        np.testing.assert_allclose(answer, ours[form.name], rtol=1e-5, atol=1e-6)


def test_an_unknown_signature_is_named(small, tmp_path):
    Servable.from_net(small).save(tmp_path / "saved")
    with pytest.raises(ExportError, match=r"one of the signatures .*serving_default.* Received: other"):
        Servable.from_saved_model(tmp_path / "saved", "other")


def test_two_inputs_of_one_name_are_told_apart():
    from tfperf.exports.servable import _distinct

    assert _distinct(["a", "a", "b/c"]) == ["a_0", "a_1", "b_c"]
    assert len({*_distinct(["a", "a", "a_0", "a_0_0", "a/0"])}) == 5


def test_inputs_may_be_called_by_any_name(tmp_path):
    """A keyword of Python and a number are names of Keras's, and none of arguments of a function."""
    inputs = {name: keras.Input((3,), name=name) for name in ("in", "2nd", "self", "not.one")}
    net = keras.Model(inputs, {"1": keras.layers.Add(name="1")(list(inputs.values()))}, name="odd")
    servable = Servable.from_net(net)
    assert [form.name for form in servable.signature.inputs] == ["x_2nd", "x_in", "not_one", "x_self"]
    assert [form.name for form in servable.signature.outputs] == ["1"]
    arrays = servable.signature.random_inputs(2)
    expected = servable.reference(arrays)
    np.testing.assert_allclose(expected[0], sum(arrays), rtol=1e-6)
    saved = Servable.from_saved_model(export(net, tmp_path))
    order = [servable.signature.inputs.index(form) for form in saved.signature.inputs]
    np.testing.assert_allclose(saved.reference([arrays[index] for index in order])[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_lower_precision_is_inside_and_float32_outside(net, precision):
    own = [layer.dtype_policy.name for layer in net.layers]
    servable = Servable.from_net(net)
    lower = servable.variant(precision)
    assert lower.signature == servable.signature
    operations = lower.trace().graph.get_operations()
    heavy = {op.outputs[0].dtype.name for op in operations if op.type in ("MatMul", "BatchMatMulV2")}
    assert heavy == {precision}
    arrays = servable.signature.random_inputs(4)
    for a, b in zip(lower.reference(arrays), servable.reference(arrays), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=3e-2)
    assert [layer.dtype_policy.name for layer in net.layers] == own


def test_float32_is_what_it_is_already(small):
    servable = Servable.from_net(small)
    assert servable.variant() is servable
    assert servable.changes == {}


def test_a_saved_model_has_the_precision_it_has(small, tmp_path):
    Servable.from_net(small).save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved", name="theirs")
    assert saved.variant("float32") is saved
    with pytest.raises(ExportError, match=r"^expected a Keras net to compute in bfloat16; 'theirs' is a graph"):
        saved.variant("bfloat16")
    for name in ("fold_batch_norm", "fuse_batch_norm"):
        with pytest.raises(ExportError, match=r"^expected a Keras net, for its batch normalizations; 'theirs' is a gr"):
            saved.variant(transformations=[name, "constant_weights"])


def test_an_unknown_transformation_is_named(small):
    with pytest.raises(ValueError, match=r"^expected transformations of tfperf\. Received: nonsense$"):
        Servable.from_net(small).variant(transformations=["nonsense", "constant_weights"])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_variables_become_constants(net, precision, tmp_path):
    servable = Servable.from_net(net)
    variant = servable.variant(precision, ["constant_weights"])
    assert variant.signature == servable.signature
    number = len(servable.trace().variables)
    assert variant.changes == ({"constant_weights": f"{number} variables became constants"})
    arrays = servable.signature.random_inputs(3)
    variant.save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved")
    order = [servable.signature.inputs.index(form) for form in saved.signature.inputs]
    for one in (variant, saved):
        assert not one.trace().variables
        given = arrays if one is variant else [arrays[index] for index in order]
        answers = dict(zip([form.name for form in one.signature.outputs], one.reference(given), strict=True))
        for form, expected in zip(servable.signature.outputs, servable.reference(arrays), strict=True):
            error = np.abs(answers[form.name] - expected).max()
            assert error <= (1e-5 if precision == "float32" else 3e-2) * np.abs(expected).max()
    stored = tf.train.list_variables(str(tmp_path / "saved" / "variables" / "variables"))
    assert [name for name, _ in stored] == ["_CHECKPOINTABLE_OBJECT_GRAPH"]


def test_constants_are_those_of_the_moment(small):
    servable = Servable.from_net(keras.models.clone_model(small))
    (x,) = servable.signature.random_inputs(2)
    variant = servable.variant(transformations=["constant_weights"])
    (before,) = variant.reference([x])
    servable.net.set_weights([weights + 1 for weights in servable.net.get_weights()])
    np.testing.assert_array_equal(variant.reference([x])[0], before)
    assert np.abs(servable.reference([x])[0] - before).max() > 0.1


def test_a_saved_model_has_weights_that_become_constants(small, tmp_path):
    Servable.from_net(small).save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved")
    arrays = saved.signature.random_inputs(3)
    variant = saved.variant(transformations=["constant_weights"])
    assert not variant.trace().variables
    np.testing.assert_allclose(variant.reference(arrays)[0], saved.reference(arrays)[0], rtol=1e-5, atol=1e-6)


def test_a_net_without_variables_has_none_that_become_constants():
    servable = Servable.from_net(keras.Sequential([keras.Input((5,)), keras.layers.ReLU()], name="relu"))
    with pytest.raises(EngineError, match=r"^net 'relu' has no variables that can become constants$"):
        servable.variant(transformations=["constant_weights"])


def test_a_lookup_table_cannot_be_a_constant():
    layers = [keras.layers.StringLookup(vocabulary=["a", "b"]), keras.layers.Embedding(3, 2)]
    servable = Servable.from_net(keras.Sequential([keras.Input((1,), dtype="string"), *layers]))
    with pytest.raises(EngineError, match=r"^expected variables that can become constants, .* cannot$"):
        servable.variant(transformations=["constant_weights"])


def test_loops_with_constants_compile():
    """XLA takes loops, and not the switches and merges of which they can be made."""
    net = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4)])
    servable = Servable.from_net(net)
    arrays = servable.signature.random_inputs(2)
    traced = servable.variant(transformations=["constant_weights"]).trace(2, jit_compile=True)
    (answer,) = traced(**{key: tf.constant(array) for key, array in servable.named(arrays).items()}).values()
    np.testing.assert_allclose(answer, servable.reference(arrays)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_policies_are_restored_after_an_error_too(policy):
    net = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, dtype=policy), keras.layers.Dense(4)])
    own = [layer.dtype_policy for layer in net.layers]
    with pytest.raises(ZeroDivisionError), computing_in(net, "float16"):
        raise ZeroDivisionError(*[layer.compute_dtype for layer in net.layers])
    assert [layer.dtype_policy for layer in net.layers] == own
    with computing_in(net, "float16"):
        assert [layer.compute_dtype for layer in net.layers] == ["float16"] * 2
        assert net.layers[0].variable_dtype == "float32"
    assert [layer.dtype_policy for layer in net.layers] == own


def test_layers_of_other_types_are_left_alone():
    double = keras.layers.Dense(4, dtype="float64")
    net = keras.Sequential([keras.Input((5,)), double, keras.layers.Dense(4)])
    with computing_in(net, "bfloat16"):
        assert [layer.compute_dtype for layer in net.layers] == ["float64", "bfloat16"]
    assert layers_to_switch(net, "float32") == []


def test_a_batch_goes_batches(pair):
    net, example = pair
    servable = Servable.from_net(net, example)
    floats, ids = np.arange(6, dtype="float32").reshape(3, 2), np.ones((3, 7), "int32")
    ones = list(servable.batches([floats, ids]))
    assert [{name: array.shape for name, array in one.items()} for one in ones] == [
        {"floats": (1, 2), "ids": (1, 7)}
    ] * 3
    np.testing.assert_array_equal(np.concatenate([one["floats"] for one in ones]), floats)


def test_what_has_no_batch_goes_with_each(small):
    signature = Signature(
        inputs=(
            TensorForm(name="x", shape=(None, 2), dtype="float32"),
            TensorForm(name="scale", shape=(3,), dtype="float32"),
        ),
        outputs=(),
    )
    servable = Servable("scaled", signature, lambda **_: {}, keeps=[])
    ones = list(servable.batches([np.zeros((2, 2)), np.ones(3)]))
    assert [(one["x"].shape, one["scale"].shape) for one in ones] == [((1, 2), (3,))] * 2
    alone = Servable("scaled", Signature(inputs=signature.inputs[1:], outputs=()), lambda **_: {}, keeps=[])
    assert len(list(alone.batches([np.ones(3)]))) == 1


def test_another_signatures_names_are_taken(servable_of_two_heads):
    servable = servable_of_two_heads
    arrays = servable.signature.random_inputs(3)
    expected = servable.reference(arrays)
    numbered = json.loads(servable.signature.model_dump_json())
    for place, form in enumerate([*numbered["inputs"], *numbered["outputs"]]):
        form["name"] = f"other_{9 - place}"  # another order by name
    signature = Signature.model_validate_json(json.dumps(numbered))
    other = servable.named_as(signature)
    assert other.signature == signature
    for variant in (
        other,
        other.variant("float32", ("fold_batch_norm",)),
        other.variant("float32", ("constant_weights",)),
    ):
        for mine, theirs in zip(variant.reference(arrays), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(other.reference(arrays), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert servable.named_as(servable.signature) is servable


def test_a_net_of_other_shapes_is_not_renamed(servable_of_two_heads):
    changed = servable_of_two_heads.signature.model_copy(
        update={"outputs": servable_of_two_heads.signature.outputs[:1]}
    )
    with pytest.raises(ExportError, match=r"^expected net 'heads' with "):
        servable_of_two_heads.named_as(changed)


@pytest.fixture
def servable_of_two_heads():
    x = keras.Input((6, 6, 2))
    y = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3)(x))
    y = keras.layers.GlobalAveragePooling2D()(y)
    net = keras.Model(x, [keras.layers.Dense(2)(y), keras.layers.Dense(5)(y)], name="heads")
    rng = np.random.default_rng(0)
    net.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in net.get_weights()])
    return Servable.from_net(net)
