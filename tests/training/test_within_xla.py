"""Layers that are computed in C++ within what XLA compiles, and as before everywhere else."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.layers import (
    EXAMPLES,
    FEW,
    KERNELS,
    ONE_PLACE,
    POLICIES,
    check_equal,
    check_near,
    everything,
    random_inputs,
    whole_numbers,
)
from tfperf.training import fit, use_mixed_precision, xla_function
from tfperf.training.within_xla import native_form, with_native_layers
from tfperf.training.xla_function import can_be_compiled

POOLING = st.sampled_from([keras.layers.MaxPooling2D, keras.layers.AveragePooling2D])
compiled = pytest.mark.skipif(not can_be_compiled(), reason="needs a C++ compiler, and no GPU")


@EXAMPLES
@given(data=st.data(), policy=POLICIES, training=st.booleans())
def test_pooling_of_any_shape_is_keras_s(data, policy, training):
    """Whole numbers: most windows have their largest more than once."""
    window, kind = data.draw(KERNELS), data.draw(POOLING)
    strides = data.draw(st.sampled_from([None, None, None, 1, 2]))
    padding = data.draw(st.sampled_from(["same", "valid"]))
    layer = kind(window, strides, padding, dtype=policy)
    size = [data.draw(st.integers(side, 12)) for side in window]
    inputs = tf.round(random_inputs([data.draw(FEW), *size, data.draw(st.integers(1, 37))], policy))
    check_equal(layer, native_form(layer), inputs, policy, training=training)


@EXAMPLES
@given(data=st.data(), policy=POLICIES, training=st.booleans())
def test_pooling_along_sequences_of_any_length_is_keras_s(data, policy, training):
    window = data.draw(FEW)
    kind = data.draw(st.sampled_from([keras.layers.MaxPooling1D, keras.layers.AveragePooling1D]))
    strides = data.draw(st.sampled_from([None, None, None, 1, 2]))
    layer = kind(window, strides, data.draw(st.sampled_from(["same", "valid"])), dtype=policy)
    shape = [data.draw(FEW), data.draw(st.integers(window, 40)), data.draw(st.integers(1, 37))]
    check_equal(layer, native_form(layer), tf.round(random_inputs(shape, policy)), policy, training=training)


def drawn_net(data, policy):
    """A convolution of few channels and pooling, of images in which both fit."""
    kernel, window = data.draw(st.sampled_from([(1, 1), (3, 3), (2, 4), (5, 5), (1, 9)])), data.draw(KERNELS)
    strides = data.draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])) if kernel != ONE_PLACE else (1, 1)
    channels = data.draw(st.integers(1, min(4, 27 // (kernel[0] * kernel[1]))))
    sides = zip(kernel, window, strides, strict=True)
    size = [side + (along - 1) * stride + data.draw(st.integers(0, 25)) for side, along, stride in sides]
    keras.utils.set_random_seed(0)
    convolution = keras.layers.Conv2D(
        data.draw(st.integers(1, 70)), kernel, strides,
        data.draw(st.sampled_from(["same", "valid"])), dtype=policy,
        use_bias=data.draw(st.booleans()),
        activation=data.draw(st.sampled_from([None, "relu", "tanh"])),
        bias_initializer="normal",
    )  # fmt: skip
    net = keras.Sequential([keras.Input((*size, channels)), convolution])
    if data.draw(st.booleans()):
        net.add(data.draw(POOLING)(window, dtype=policy))
    return net


@EXAMPLES
@given(data=st.data(), policy=POLICIES)
def test_a_convolution_of_few_channels_and_its_pooling_are_keras_s(data, policy):
    """Rows that columns fill, that leave some over, and that are shorter; filters for all registers.

    Of whole numbers, so that both take the same number of a window for the largest.
    """
    net = drawn_net(data, policy)
    inputs, *weights = whole_numbers([data.draw(FEW), *net.input_shape[1:]], *(one.shape for one in net.weights))
    inputs = tf.cast(inputs, "float32")
    net.set_weights([np.asarray(one, "float32") for one in weights])
    upstream = np.random.default_rng(1).normal(size=net.compute_output_shape(inputs.shape))
    plain = everything(net, inputs, upstream, training=True)
    with with_native_layers(net):
        ours = everything(net, inputs, upstream, training=True)

    def exact():
        whole = keras.models.clone_model(net, clone_function=lambda layer: in_whole(layer))
        whole.set_weights([tf.cast(tf.cast(one, "bfloat16"), "float32").numpy() for one in net.get_weights()])
        return everything(whole, tf.cast(tf.cast(inputs, "bfloat16"), "float32"), upstream, training=True)

    check_near(plain, ours, policy, exact)


def in_whole(layer):
    return type(layer).from_config(layer.get_config() | {"dtype": "float32"})


def images(count=24):
    return np.random.default_rng(0).normal(size=[count, 10, 10, 1]).astype("float32")


def small_net(policy="float32", *, mean=False):
    """One convolution and pooling; of the mean behind a second convolution."""
    keras.utils.set_random_seed(0)
    second = [keras.layers.Conv2D(6, 3, padding="same", dtype=policy), keras.layers.AveragePooling2D(2, dtype=policy)]
    return keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", dtype=policy),
            keras.layers.MaxPooling2D(2, dtype=policy),
            *(second if mean else []),
            keras.layers.Flatten(dtype=policy),
            keras.layers.Dense(4),
        ]
    )


def step_of(model):
    """A function of inputs to the gradients of a model's weights, traced as XLA's program is."""

    def step(inputs):
        with with_native_layers(model), tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True) ** 2)
        return tape.gradient(loss, [one.value for one in model.trainable_variables])

    return step


def calls_of(model, inputs):
    """How many functions in C++ a step of training calls."""
    graph = (
        tf.function(step_of(model), autograph=False)
        .get_concrete_function(tf.TensorSpec(inputs.shape))
        .graph.as_graph_def()
    )
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return sum(node.op == "XlaCallModule" for node in nodes)


@compiled
def test_convolutions_of_few_channels_and_pooling_are_native_and_keras_s_afterwards():
    model = small_net()
    kinds = [type(layer) for layer in model.layers]
    assert calls_of(model, images()) == 3  # the convolution without pooling, which XLA leaves out, and both passes
    assert [type(layer) for layer in model.layers] == kinds


@compiled
def test_xla_leaves_out_the_convolution_that_is_not_pooled():
    step = tf.function(step_of(small_net()), jit_compile=True, autograph=False)
    program = step.experimental_get_compiler_ir(tf.constant(images()))(stage="optimized_hlo")
    assert program.count('custom_call_target="tfperf_few_channels_max_f32"') == 1


@compiled
def test_what_is_convolved_may_be_used_elsewhere_too():
    images_in = keras.Input((10, 10, 1))
    convolved = keras.layers.Conv2D(8, 3, activation="relu")(images_in)
    pooled = [keras.layers.MaxPooling2D(side)(convolved) for side in (2, 4)]
    pooled += [keras.layers.AveragePooling2D(side)(convolved) for side in (2, 4)]
    outputs = keras.layers.Concatenate()([keras.layers.Flatten()(one) for one in (*pooled, convolved)])
    model = keras.Model(images_in, outputs)
    upstream = np.random.default_rng(1).normal(size=[24, *model.output_shape[1:]])
    plain = everything(model, tf.constant(images()), upstream, training=True)
    with with_native_layers(model):
        check_near(plain, everything(model, tf.constant(images()), upstream, training=True), "float32", None)


@compiled
@pytest.mark.parametrize(
    ("pooling", "joined"),
    [
        (keras.layers.MaxPooling2D(15), True),
        (keras.layers.MaxPooling2D(16), False),
        (keras.layers.AveragePooling2D((2, 4)), True),
        (keras.layers.AveragePooling2D(3), False),
    ],
)
def test_windows_may_be_large(pooling, joined):
    """The largest of more than 255 places, and the mean of more than 8, are taken by themselves."""
    layers = [keras.Input((34, 33, 1)), keras.layers.Conv2D(5, 3, activation="relu"), pooling]
    model, inputs = keras.Sequential(layers), random_inputs([3, 34, 33, 1], "float32")
    assert calls_of(model, inputs) == (3 if joined else 4)
    upstream = np.random.default_rng(1).normal(size=model.compute_output_shape(inputs.shape))
    plain = everything(model, inputs, upstream, training=True)
    with with_native_layers(model):
        check_near(plain, everything(model, inputs, upstream, training=True), "float32", None)


@compiled
@pytest.mark.filterwarnings("ignore:.build:UserWarning")
def test_a_layer_that_is_never_called_and_sizes_of_numpy_are_no_trouble():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.used = keras.layers.Conv2D(4, np.array([3, 3]), np.array([2, 2]))
            self.pool = keras.layers.MaxPooling2D(np.array([2, 2]))
            self.spare = keras.layers.Conv2D(4, 3)
            self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(self.flat(self.pool(self.used(inputs))))

    model = Net()
    model.compile("sgd", "mse")
    loss = fit(model, images(), np.ones([24, 1]), batch_size=8, verbose=0, jit_compile=True).history["loss"]
    assert np.isfinite(loss).all()


@compiled
def test_pooling_behind_another_layer_is_native_too():
    model = keras.Sequential(
        [keras.Input((10, 10, 6)), keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(3)]
    )
    assert calls_of(model, np.zeros([4, 10, 10, 6], "float32")) == 2


@compiled
@pytest.mark.parametrize(("policy", "strides"), [("float32", 1), ("float32", 2), ("mixed_bfloat16", 2)])
def test_convolutions_of_many_channels_are_native_with_any_strides(policy, strides):
    layer = keras.layers.Conv2D(8, 5, strides, padding="same", dtype=policy)
    model = keras.Sequential([keras.Input((10, 9, 6)), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    inputs = random_inputs([4, 10, 9, 6], "float32")
    assert calls_of(model, inputs) == 3  # forward, and both gradients
    check_equal(layer, native_form(layer), random_inputs([4, 10, 9, 6], policy), policy, training=True)


@compiled
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "options", [{}, {"strides": 2, "padding": "same"}, {"padding": "causal"}, {"kernel_size": 1}, {"groups": 2}]
)
def test_a_net_of_sequences_is_native_and_keras_s(options, policy):
    """A pooling's two passes, and a convolution's three, or two where it has few channels. Groups stay Keras's."""
    keras.utils.set_random_seed(0)
    few = keras.layers.Conv1D(6, 5, activation="relu", dtype=policy)
    layer = keras.layers.Conv1D(**{"filters": 8, "kernel_size": 3, "dtype": policy} | options)
    model = keras.Sequential([keras.Input((40, 1)), few, keras.layers.MaxPooling1D(2), layer, keras.layers.Flatten()])
    assert calls_of(model, np.zeros([4, 40, 1], "float32")) == 2 + 2 + (0 if "groups" in options else 3)
    check_equal(layer, native_form(layer), random_inputs([4, 18, 6], policy), policy, training=True)


@pytest.mark.usefixtures("amx")
def test_convolutions_and_pooling_of_a_net_are_all_native_in_bfloat16():
    """The first convolution alone, with pooling, and its gradient; the second with two gradients; pooling with one."""
    layers = [keras.layers.Conv2D(6, 3), keras.layers.AveragePooling2D(2), keras.layers.Conv2D(8, 3, padding="same")]
    layers += [keras.layers.MaxPooling2D(2), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((10, 10, 1)), *layers])
    use_mixed_precision(model)
    assert calls_of(model, images()) == 3 + 3 + 2


@compiled
@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.Conv2D(8, 3, groups=2),
        keras.layers.Conv2D(8, 3, dilation_rate=2),
        keras.layers.MaxPooling2D(3, strides=1),
        keras.layers.MaxPooling2D(3, padding="same"),
        keras.layers.AveragePooling2D(3, padding="same"),
        keras.layers.MaxPooling2D(3, dtype="mixed_float16"),
        keras.layers.Conv2D(8, 3, dtype="mixed_float16"),
    ],
)
def test_others_stay_keras_s(layer):
    model = keras.Sequential([keras.Input((10, 10, 2)), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    assert calls_of(model, np.zeros([4, 10, 10, 2], "float32")) == 0


def test_without_a_compiler_all_are_keras_s(monkeypatch):
    monkeypatch.setattr(xla_function, "is_there", lambda _: False)
    assert calls_of(small_net(), images()) == 0


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("convolved", [False, True])
def test_pooling_keeps_what_is_no_number(policy, convolved):
    numbers = np.zeros([1, 2, 6, 1], "float32")
    numbers[0, 1, 0], numbers[0, 0, 3], numbers[0, 1, 5] = np.nan, -np.inf, 1
    pooling = keras.layers.MaxPooling2D(2, dtype=policy)
    before = [keras.layers.Conv2D(1, 1, kernel_initializer="ones", dtype=policy)] if convolved else []
    net, numbers = keras.Sequential([keras.Input((2, 6, 1)), *before, pooling]), tf.constant(numbers)
    with with_native_layers(net), tf.GradientTape() as tape:
        tape.watch(numbers)
        outputs = tf.cast(net(numbers, training=True), "float32")
    assert np.isnan(outputs)[0, 0, :, 0].tolist() == [True, False, False]
    assert np.asarray(outputs)[0, 0, 1:, 0].tolist() == [0, 1]
    if not convolved:
        assert np.asarray(tape.gradient(outputs, numbers))[0, :, :, 0].tolist() == [
            [0, 0, 1, 0, 0, 0],
            [1, 0, 0, 0, 0, 1],
        ]


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_gradients_of_gradients_are_keras_s(policy, mean):
    def penalty(net, numbers):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(numbers)
                total = tf.reduce_sum(tf.cast(net(numbers, training=True), tf.float32) ** 3)
            size = tf.reduce_sum(inner.gradient(total, numbers) ** 2)
        return [np.asarray(one) for one in outer.gradient(size, [one.value for one in net.trainable_variables])]

    net, numbers = small_net(policy, mean=mean), tf.constant(images(3))
    expected = penalty(net, numbers)
    with with_native_layers(net):
        found = penalty(net, numbers)
    for ours, keras_s in zip(found, expected, strict=True):
        tolerance = (1e-4 if policy == "float32" else 5e-2) * np.abs(keras_s).max()
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_loop_by_xla_trains_as_the_other_loop(policy, mean):
    weights = []
    for jit_compile in (False, True):
        model = small_net(policy, mean=mean)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        targets = np.random.default_rng(1).normal(size=[24, 4])
        fit(model, images(), targets, batch_size=8, epochs=2, shuffle=False, verbose=0, jit_compile=jit_compile)
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 if policy == "float32" else 2e-3)


def test_a_layer_has_its_class_back_where_tracing_fails():
    model = small_net()
    pool = model.layers[1]

    def fail():
        with with_native_layers(model):
            assert type(pool) is not keras.layers.MaxPooling2D
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert type(pool) is keras.layers.MaxPooling2D
