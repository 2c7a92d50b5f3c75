"""Fused layers compute what Keras's do, forward, backward and in their moving statistics, and are saved as Keras's."""

import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.layers import (
    EXAMPLES,
    POLICIES,
    TOLERANCE,
    check_equal,
    check_near,
    in_float32,
    random_inputs,
)
from tfperf.training import (
    CompiledActivation,
    CompiledDepthwiseConv2D,
    CompiledDropout,
    CompiledLayerNormalization,
    CompiledReLU,
    FlattenedDense,
    FusedBatchNormalization,
    MergedAttention,
    SwappedConv2D,
)
from tfperf.training.fusing import FORMS
from tfperf.training.saved_form import with_class

NATIVE_FUNCTIONS = ["gelu", "hard_silu", "relu6", "silu"]


@EXAMPLES
@given(data=st.data(), policy=POLICIES)
def test_a_dense_layer_of_any_shape_is_keras_s(data, policy):
    """In bfloat16 without a bias, as for convolutions."""
    keras.utils.set_random_seed(0)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    layer = keras.layers.Dense(
        data.draw(st.integers(1, 5)),
        data.draw(st.sampled_from([None, "relu", "gelu"])),
        use_bias=data.draw(st.booleans()) and policy == "float32",
        bias_initializer="normal",
        dtype=policy,
    )
    layer.build(shape)
    check_equal(layer, FlattenedDense, random_inputs(shape, policy), policy)


ACTIVATIONS = {
    "softmax": (lambda: "softmax", keras.losses.categorical_crossentropy),
    "sigmoid": (lambda: "sigmoid", keras.losses.binary_crossentropy),
    "softmax over the length": (lambda: keras.layers.Softmax(axis=1), keras.losses.mean_squared_error),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_losses_find_the_logits_behind_a_dense_layer_of_a_sequence(name, traced):
    """Where an output is nearly 0 or 1, Keras's losses take the logits: of clipped probabilities the gradient is 0."""
    activation, loss = ACTIVATIONS[name]
    keras.utils.set_random_seed(0)
    inputs, targets = random_inputs([2, 3, 4], "float32") * 40, tf.one_hot([[0, 1, 2], [2, 1, 0]], 3)
    layer, found = keras.layers.Dense(3, activation(), bias_initializer="normal"), []
    layer.build(inputs.shape)

    def step():
        with tf.GradientTape() as tape:
            outputs = layer(inputs)
            total = tf.reduce_sum(loss(targets, outputs))
        return outputs, total, tape.gradient(total, layer.kernel.value)

    for kind in (keras.layers.Dense, FlattenedDense):
        with_class(layer, kind)
        found.append((tf.function(step) if traced else step)())
    for plain, fused in zip(*found, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-4)


def test_a_dense_layer_of_a_sequence_is_one_product_with_its_bias_and_its_relu():
    layer = FlattenedDense(3, "relu")
    traced = tf.function(layer).get_concrete_function(tf.TensorSpec([None, 5, 4]))
    kinds = [one.type for one in traced.graph.get_operations()]
    (relu,) = (one for one in traced.graph.get_operations() if one.type == "Relu")
    assert relu.inputs[0].op.type == "BiasAdd"
    assert relu.inputs[0].op.inputs[0].op.type == "MatMul"
    assert not {"BatchMatMulV2", "Einsum"} & set(kinds)


@settings(EXAMPLES, max_examples=30)  # each compiles
@given(data=st.data(), policy=POLICIES, training=st.booleans())
def test_a_layer_normalization_of_any_shape_is_keras_s(data, policy, training):
    keras.utils.set_random_seed(0)
    shape = data.draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    layer = keras.layers.LayerNormalization(
        axis=data.draw(st.sampled_from([-1, [1], list(range(1, len(shape)))])),
        center=data.draw(st.booleans()),
        scale=data.draw(st.booleans()),
        beta_initializer="normal",
        gamma_initializer="normal",
        dtype=policy,
    )
    layer.build(shape)
    check_equal(layer, CompiledLayerNormalization, random_inputs(shape, policy), policy, training=training)


@settings(EXAMPLES, max_examples=30)  # each compiles
@given(data=st.data(), policy=POLICIES, name=st.sampled_from(NATIVE_FUNCTIONS), training=st.booleans())
def test_an_activation_of_any_shape_is_keras_s(data, policy, name, training):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    layer = keras.layers.Activation(name, dtype=policy)
    layer.build(shape)
    check_equal(layer, CompiledActivation, random_inputs(shape, policy), policy, training=training)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", NATIVE_FUNCTIONS)
def test_an_activation_is_right_where_numbers_are_large_tiny_or_none(name, policy):
    """Also at the kinks, from both sides."""
    small, kinks = [0, 1e-38, 1e-30, 1e-4, 0.5], [2.9, 2.99999, 3, 3.00001, 3.1, 5.99999, 6, 6.00001]
    sizes = [*small, *kinks, 9, 13, 80, 88, 89, 200, 1e30, 1e36, 1e38]
    inputs = tf.cast([*sizes, *(-one for one in sizes), np.inf, np.nan], keras.dtype_policies.get(policy).compute_dtype)
    layer = CompiledActivation(name, dtype=policy)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
    found = [np.asarray(tf.cast(one, tf.float64)) for one in (outputs, tape.gradient(outputs, inputs))]
    exact = tf.cast(inputs, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(exact)
        outputs = layer.activation(exact)
    expected = [np.asarray(outputs), np.asarray(tape.gradient(outputs, exact))]
    tolerance = 2e-6 if policy == "float32" else 2**-7
    numbers = slice(0, -2)
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours[numbers], right[numbers], rtol=tolerance, atol=tolerance)
    assert found[0][-2] == (6 if name == "relu6" else np.inf)
    assert np.isnan(found[0][-1])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("options", [{"max_value": 6.0}, {"max_value": 5}, {}, {"max_value": 6, "negative_slope": 0.1}])
def test_a_relu_of_any_kind_is_keras_s(options, policy):
    layer, inputs = keras.layers.ReLU(**options, dtype=policy), random_inputs([3, 5, 7], policy)
    layer.build(inputs.shape)
    check_equal(layer, CompiledReLU, inputs, policy, training=True)


def test_an_activation_of_another_kind_is_keras_s():
    """One may be the user's, of any class."""

    class Doubled:
        __hash__ = None

        def __call__(self, numbers):
            return 2 * numbers

    for kind, dtype in ((Doubled(), "float32"), ("tanh", "float32"), ("relu", "float32"), ("silu", "float64")):
        layer, inputs = keras.layers.Activation(kind, dtype=dtype), random_inputs([3, 5], dtype)
        layer.build(inputs.shape)
        assert not CompiledActivation.suits(layer, (3, 5))
        expected = layer(inputs, training=True)
        with_class(layer, CompiledActivation)
        with tf.GradientTape():  # without one all are Keras's
            found = layer(inputs, training=True)
        np.testing.assert_array_equal(tf.cast(found, tf.float64), tf.cast(expected, tf.float64))


NATIVE = [
    lambda policy: keras.layers.LayerNormalization(
        gamma_initializer=keras.initializers.RandomUniform(1, 2), dtype=policy
    ),
    lambda policy: keras.layers.Activation("silu", dtype=policy),
    lambda policy: keras.layers.ReLU(6.0, dtype=policy),
    lambda policy: keras.layers.Dense(64, "gelu", dtype=policy, use_bias=False),
    lambda policy: keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False, dtype=policy),
    lambda policy: keras.layers.DepthwiseConv2D((4, 5), 2, use_bias=False, dtype=policy),
    lambda policy: keras.layers.SeparableConv2D(20, 3, padding="same", use_bias=False, dtype=policy),
    lambda policy: keras.layers.Conv2D(20, 3, padding="same", activation="relu", dtype=policy),
    lambda policy: keras.layers.Conv2D(33, (2, 3), 2, use_bias=False, dtype=policy),
]
"""Layers whose faster form is in C++ in training."""


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("jit_compile", [None, True])
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("make", NATIVE)
def test_a_native_layer_of_many_rows_is_keras_s(make, policy, jit_compile, batch):
    """Rows enough for several threads, of a number that is not known when it is traced, beside other code of XLA's."""
    keras.utils.set_random_seed(0)
    layer = make(policy)
    of_images = isinstance(layer, keras.layers.Conv2D)
    inputs = random_inputs([batch, 27, 23, 3] if of_images else [batch, 7, 11, 149], policy, mean=3.0)
    layer.build(inputs.shape)
    weights, found = layer.get_weights(), []
    upstream = random_inputs(layer.compute_output_shape(inputs.shape), policy)
    spec, upstream_spec = (tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in (inputs, upstream))

    def step(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        return [outputs, *tape.gradient(outputs, [inputs, *(one.value for one in layer.trainable_variables)], upstream)]

    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        layer.set_weights(weights)
        computed = tf.function(step, input_signature=[spec, upstream_spec], jit_compile=jit_compile)(inputs, upstream)
        found.append([*(np.asarray(tf.cast(one, tf.float64)) for one in computed), *layer.get_weights()])
    check_near(*found, policy, lambda: in_float32(layer, weights, inputs, upstream, training=True))


def operations_of(graph):
    """The kinds of operations in a graph and in all functions that it calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    return {node.op for node in nodes}


@pytest.mark.parametrize("make", NATIVE)
def test_a_layer_is_native_in_training_alone(make):
    """What is exported is loaded where there are none of its functions."""
    layer = make("mixed_bfloat16")
    layer.build([2, 9, 9, 4])
    with_class(layer, FORMS[type(layer)])
    spec, native = tf.TensorSpec([None, 9, 9, 4], tf.bfloat16), {}

    def step(given, training):
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs = layer(given, training=training)
        return tape.gradient(outputs, given)

    for training in (True, False, None):
        traced = tf.function(lambda given, training=training: step(given, training))
        native[training] = "XlaCallModule" in operations_of(traced.get_concrete_function(spec).graph)
    assert native == {True: True, False: False, None: False}
    exported = tf.function(lambda given: layer(given, training=True))  # as a model with dropout at inference has it
    assert "XlaCallModule" not in operations_of(exported.get_concrete_function(spec).graph)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("make", NATIVE)
def test_a_native_layer_takes_gradients_of_gathered_rows_and_of_no_shape(make, traced, policy):
    keras.utils.set_random_seed(0)
    layer, inputs, found = make(policy), random_inputs([3, 9, 9, 4], policy), []
    layer.build(inputs.shape)

    def step(inputs):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            gathered = tf.gather(outputs, [0, 2, 2])
            of_python = tf.py_function(lambda given: given * given, [outputs], outputs.dtype)
        return [tape.gradient(one, inputs) for one in (gathered, of_python)]

    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        computed = (tf.function(step) if traced else step)(inputs)
        found.append([np.asarray(tf.cast(one, tf.float64)) for one in computed])
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=2 * TOLERANCE[policy] * max(1, np.abs(keras_s).max()))


@pytest.mark.parametrize("make", NATIVE)
def test_gradients_of_gradients_of_a_function_that_has_a_tape_within_are_keras_s(make):
    keras.utils.set_random_seed(0)
    layer, inputs, found = make("mixed_bfloat16"), random_inputs([3, 9, 9, 4], "mixed_bfloat16"), []
    layer.build(inputs.shape)

    def slopes(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(tf.cast(layer(inputs, training=True), tf.float32) ** 2)
        return tape.gradient(total, inputs)

    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        function = tf.function(slopes)
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            first = function(inputs)
        found.append([np.asarray(tf.cast(one, tf.float64)) for one in (first, outer.gradient(first, inputs))])
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=4e-2 * max(1, np.abs(keras_s).max()))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("make", NATIVE)
def test_gradients_of_gradients_of_a_native_layer_are_keras_s(make, policy):
    keras.utils.set_random_seed(0)
    layer, inputs, found = make(policy), random_inputs([3, 5, 6, 4], policy), []
    layer.build(inputs.shape)

    def penalty():
        sources = [inputs, *(one.value for one in layer.trainable_variables)]
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                total = tf.reduce_sum(tf.cast(layer(inputs, training=True), tf.float32) ** 3)
            sizes = [tf.reduce_sum(tf.cast(one, tf.float32) ** 2) for one in inner.gradient(total, sources)]
        return outer.gradient(sizes, sources)

    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        found.append([np.asarray(tf.cast(one, tf.float64)) for one in penalty()])
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=2 * TOLERANCE[policy] * max(1, np.abs(keras_s).max()))


@pytest.mark.parametrize("make", NATIVE)
def test_a_function_that_calls_a_native_layer_is_differentiated_from_outside(make):
    """Where no tape saw the layer itself, as the function was traced before."""
    keras.utils.set_random_seed(0)
    layer, found = make("mixed_bfloat16"), []
    inputs = random_inputs([3, 9, 9, 4], "mixed_bfloat16")
    layer.build(inputs.shape)
    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        function = tf.function(lambda given: layer(given, training=True))
        function.get_concrete_function(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
        found.append([np.asarray(tf.cast(one, tf.float64)) for one in (outputs, tape.gradient(outputs, inputs))])
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=2e-2 * max(1, np.abs(keras_s).max()))


@pytest.mark.parametrize(
    "before",
    [
        SwappedConv2D(4, 3, dtype="mixed_bfloat16"),
        CompiledDepthwiseConv2D(3, dtype="mixed_bfloat16"),
        FusedBatchNormalization(dtype="mixed_bfloat16"),
    ],
)
def test_a_relu_can_still_be_run_as_part_of_what_is_before_it(before):
    relu, spec = CompiledReLU(dtype="mixed_bfloat16"), tf.TensorSpec([2, 9, 9, 4], tf.bfloat16)
    before.build(spec.shape)

    def step(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs = relu(before(given, training=True), training=True)
        return tape.gradient(outputs, given)

    graph = tf.function(step).get_concrete_function(spec).graph
    (forward,) = (one for one in graph.get_operations() if one.type == "Relu")
    assert forward.inputs[0].op.type in ("BiasAdd", "FusedBatchNormV3")
    assert forward.inputs[0].consumers() == [forward]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_what_is_no_number_stays_so_in_its_row_alone(policy):
    inputs = random_inputs([4, 8], policy)
    inputs = tf.tensor_scatter_nd_update(inputs, [[1, 2], [2, 3]], tf.constant([np.nan, np.inf], inputs.dtype))
    layer = CompiledLayerNormalization(dtype=policy)
    with tf.GradientTape():
        outputs = layer(inputs, training=True)
    found = np.isnan(np.asarray(tf.cast(outputs, tf.float32)))
    assert found.all(axis=1).tolist() == [False, True, True, False]
    assert found.any(axis=1).tolist() == [False, True, True, False]


@EXAMPLES
@given(data=st.data(), policy=POLICIES)
def test_attention_of_any_shape_is_keras_s(data, policy):
    """In bfloat16 without a bias, as for convolutions."""
    keras.utils.set_random_seed(0)
    few = st.integers(1, 5)
    layer = keras.layers.MultiHeadAttention(
        data.draw(few),
        data.draw(few),
        value_dim=data.draw(st.one_of(st.none(), few)),
        output_shape=data.draw(st.one_of(st.none(), few)),
        use_bias=data.draw(st.booleans()) and policy == "float32",
        bias_initializer="normal",
        dtype=policy,
    )
    inputs = random_inputs([data.draw(few), data.draw(few), data.draw(few)], policy) / 4
    layer(inputs, inputs)
    check_equal(layer, MergedAttention, inputs, policy, value=inputs)


def test_attention_has_one_product_for_queries_keys_and_values():
    inputs = random_inputs([2, 3, 6], "float32")
    layer = MergedAttention(2, 4)
    layer(inputs, inputs)
    traced = tf.function(lambda given: layer(given, given)).get_concrete_function(inputs)
    kinds = [operation.type for operation in traced.graph.get_operations()]
    assert "Einsum" not in kinds
    assert kinds.count("MatMul") == 2  # and that of the output
    assert kinds.count("BatchMatMulV2") == 2


MASKS = {
    "none": None,
    "of places": tf.constant(np.random.default_rng(0).random([3, 40, 40]) > 0.3),
    "of keys": tf.constant(np.random.default_rng(0).random([3, 1, 40]) > 0.3),
    "of all examples": tf.constant(np.random.default_rng(0).random([1, 40, 40]) > 0.3),
    "of one key": tf.constant(np.random.default_rng(0).random([3, 40, 1]) > 0.3),
    "of nothing": tf.zeros([3, 40, 40], tf.bool),
}


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("padding", [False, True], ids=["", "padded"])
def test_attention_with_masks_and_dropout_is_keras_s(rate, mask, padding, causal):
    """With the numbers that Keras draws; what is padded tells the layers behind it."""
    layer = keras.layers.MultiHeadAttention(2, 4, dropout=rate, seed=1)
    inputs = random_inputs([3, 40, 6], "float32") / 4
    layer(inputs, inputs)
    found = []
    for kind in (keras.layers.MultiHeadAttention, MergedAttention):
        with_class(layer, kind)
        if rate:
            layer._dropout_layer.seed_generator.state.assign([1, 0])
        given = tf.identity(inputs)
        if padding:
            given._keras_mask = tf.constant(np.random.default_rng(1).random([3, 40]) > 0.3)
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs = layer(given, given, attention_mask=MASKS[mask], use_causal_mask=causal, training=True)
            loss = tf.reduce_sum(outputs * np.random.default_rng(2).normal(size=outputs.shape))
        gradients = tape.gradient(loss, [given, *(one.value for one in layer.trainable_variables)])
        found.append([outputs.numpy(), *(one.numpy() for one in gradients)])
        assert (getattr(outputs, "_keras_mask", None) is not None) == padding
    check_near(*found, "float32", None)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, {"value": random_inputs([2, 4, 6], "float32")}),
        ({}, {"attention_mask": tf.linalg.band_part(tf.ones([2, 2, 3, 3], tf.bool), -1, 0)}),
        ({"use_gate": True}, {}),
        ({"output_shape": (2, 3)}, {}),
        ({"dropout": 0.5}, {}),
    ],
    ids=["another value", "masks of heads", "gate", "output of two axes", "dropout that does not drop"],
)
def test_attention_of_another_kind_is_keras_s(options, given):
    inputs = random_inputs([2, 3, 6], "float32")
    given = {"value": inputs, "training": False} | given
    layer = keras.layers.MultiHeadAttention(2, 4, **options)
    layer(inputs, **given)
    check_equal(layer, MergedAttention, inputs, "float32", **given)


@EXAMPLES
@given(data=st.data(), policy=st.sampled_from(sorted(TOLERANCE)))
def test_a_batch_normalization_of_any_shape_is_keras_s(data, policy):
    keras.utils.set_random_seed(0)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    layer = keras.layers.BatchNormalization(
        momentum=data.draw(st.sampled_from([0.0, 0.9, 0.99])), epsilon=data.draw(st.sampled_from([1e-3, 1e-2])),
        center=data.draw(st.booleans()), scale=data.draw(st.booleans()), dtype=policy, beta_initializer="normal",
        gamma_initializer="normal", moving_mean_initializer="normal",
    )  # fmt: skip
    layer.build(shape)
    layer.trainable = data.draw(st.booleans())
    inputs = random_inputs(shape, policy, mean=1.0)
    check_equal(
        layer, FusedBatchNormalization, inputs, policy, training=data.draw(st.sampled_from([True, False, None]))
    )


@pytest.mark.parametrize("shape", [(9, 13, 11, 70), (40, 12, 10, 3), (700, 17), (2, 3, 64)])
def test_gradients_of_a_batch_normalization_of_many_rows_are_exact(shape):
    """More rows than are added up at a time, more than one thread has; beside float64."""
    inputs, upstream = (tf.constant(np.random.default_rng(mean).normal(mean, 1, shape), "float32") for mean in (3, 0))
    layer = keras.layers.BatchNormalization(gamma_initializer="normal")
    layer.build(shape)
    with_class(layer, FusedBatchNormalization)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
    found = tape.gradient(outputs, [inputs, layer.gamma.value, layer.beta.value], upstream)
    x, dy, gamma = (np.asarray(one, "float64") for one in (inputs, upstream, layer.gamma))
    axes = tuple(range(len(shape) - 1))
    steepness = 1 / np.sqrt(x.var(axes) + layer.epsilon)
    normal = (x - x.mean(axes)) * steepness
    along = (dy * normal).mean(axes)
    exact = [gamma * steepness * (dy - dy.mean(axes) - normal * along), (dy * normal).sum(axes), dy.sum(axes)]
    for ours, right in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_a_batch_normalization_has_gradients_of_gradients():
    def penalty(kind):
        layer = keras.layers.BatchNormalization(gamma_initializer="normal")
        layer.build([6, 4, 4, 3])
        with_class(layer, kind)
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                total = tf.reduce_sum(layer(inputs, training=True) ** 3)
            size = tf.reduce_sum(inner.gradient(total, inputs) ** 2)
        return outer.gradient(size, inputs)

    keras.utils.set_random_seed(0)
    inputs = random_inputs([6, 4, 4, 3], "float32")
    plain = penalty(keras.layers.BatchNormalization)
    keras.utils.set_random_seed(0)
    found = penalty(FusedBatchNormalization)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-4 * np.abs(plain).max())


@pytest.mark.parametrize("options", [{"axis": 1}, {"renorm": True}, {"dtype": "float64"}])
def test_what_the_operation_cannot_do_is_keras_s(options):
    layer = keras.layers.BatchNormalization(**options)
    layer.build([4, 3, 5, 2])
    inputs = tf.cast(random_inputs([4, 3, 5, 2], "float32"), layer.compute_dtype)
    check_equal(layer, FusedBatchNormalization, inputs, "float32", training=True)


def test_a_mask_is_keras_s():
    layer = keras.layers.BatchNormalization()
    layer.build([2, 3, 4])
    mask = tf.constant([[True, True, False], [True, False, False]])
    check_equal(
        layer, FusedBatchNormalization, random_inputs([2, 3, 4], "float32"), "float32", training=True, mask=mask
    )


def test_what_is_saved_is_keras_s(tmp_path):
    inputs = keras.Input((8, 8, 1))
    hidden = FusedBatchNormalization(name="norm")(SwappedConv2D(3, 3, name="conv")(inputs))
    net = keras.Model(inputs, keras.layers.Flatten()(hidden))
    net.save(tmp_path / "net.keras")
    with zipfile.ZipFile(tmp_path / "net.keras") as archive:
        config = archive.read("config.json").decode()
    assert "tfperf" not in config
    named = {one["name"]: (one["module"], one["class_name"]) for one in json.loads(config)["config"]["layers"]}
    assert named["norm"] == ("keras.layers", "BatchNormalization")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert type(loaded.get_layer("norm")) is keras.layers.BatchNormalization
    assert type(loaded.get_layer("conv")) is keras.layers.Conv2D
    images = random_inputs([2, 8, 8, 1], "float32")
    np.testing.assert_allclose(net(images), loaded(images), atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("shape", [[3], [5, 63], [2, 64, 7], [33, 7, 11, 149]])
def test_dropout_keeps_the_numbers_that_keras_keeps(shape, rate, policy):
    inputs, found = random_inputs(shape, policy), []
    upstream = random_inputs(shape, policy, mean=1.0)
    spec = tf.TensorSpec([None, *shape[1:]], inputs.dtype)
    for kind in (keras.layers.Dropout, CompiledDropout):
        layer = kind(rate, seed=7, dtype=policy)
        layer.build(shape)

        @tf.function(input_signature=[spec, spec])
        def step(inputs, upstream, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
            return outputs, tape.gradient(outputs, inputs, upstream)

        found.append([tf.cast(one, tf.float32) for _ in range(3) for one in step(inputs, upstream)])
        found[-1].append(layer.seed_generator.state.value)
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, keras_s)
    if np.size(inputs) > 10_000:
        assert not np.array_equal(found[1][0], found[1][2])  # each call drops others
        assert 0.9 * rate < np.mean(np.asarray(found[1][0]) == 0) < 1.1 * rate


@pytest.mark.parametrize("options", [{"noise_shape": (None, 1, 4)}, {"rate": 0.0}, {"dtype": "mixed_float16"}])
def test_dropout_of_another_kind_is_keras_s(options):
    found = []
    for kind in (keras.layers.Dropout, CompiledDropout):
        layer = kind(**{"rate": 0.5, "seed": 7} | options)
        with tf.GradientTape():  # without one all are Keras's
            found.append(tf.cast(layer(tf.ones([5, 3, 4]), training=True), tf.float32))
    np.testing.assert_array_equal(*found)
    assert not CompiledDropout.suits(layer, (5, 3, 4))


def test_dropout_outside_training_and_within_xla():
    layer, inputs = CompiledDropout(0.5, seed=7), random_inputs([33, 1000], "float32")
    np.testing.assert_array_equal(layer(inputs), inputs)

    @tf.function(jit_compile=True)
    def recorded():
        with tf.GradientTape():  # else it is Keras's, as what is exported
            return layer(inputs, training=True)

    outputs, others = recorded(), recorded()
    kept = np.asarray(outputs) != 0
    assert 0.45 < kept.mean() < 0.55
    np.testing.assert_allclose(outputs, np.where(kept, 2 * np.asarray(inputs), 0), rtol=1e-6)
    assert not np.array_equal(kept, np.asarray(others) != 0)
