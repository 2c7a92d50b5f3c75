"""Nets with their batch normalizations folded or fused answer as they did, and are left as they were."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from tfperf.errors import EngineError, ExportError
from tfperf.exports.batch_norm import LINEAR, calling
from tfperf.exports.servable import Servable
from tfperf.training import FusedBatchNormalization
from tfperf.training import fuse as fuse_layers

FOLD, FUSE, CONSTANT = "fold_batch_norm", "fuse_batch_norm", "constant_weights"
COMBINATIONS = [(FOLD,), (FUSE,), (FOLD, FUSE), (FOLD, CONSTANT), (FUSE, CONSTANT), (FOLD, FUSE, CONSTANT)]

CLOSE = 1e-5
"""The largest error, as a share of the largest output: float32 adds up in another order."""


def randomised(net, seed=0):
    """The net, with every weight random, statistics and signs of scales among them."""
    generator = np.random.default_rng(seed)
    for weight in net.weights:
        if weight.name == "moving_variance":
            weight.assign(generator.uniform(0.3, 2, weight.shape))
        elif weight.name == "gamma":
            weight.assign(generator.uniform(0.5, 1.5, weight.shape) * generator.choice([-1, 1], weight.shape))
        elif weight.name in ("beta", "moving_mean", "bias"):
            weight.assign(generator.normal(0, 0.5, weight.shape))
    return net


def sequential():
    stack = [layers.Conv2D(6, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.Flatten()]
    stack += [layers.Dense(5), layers.BatchNormalization(scale=False), layers.ReLU(), layers.Dense(3)]
    before = layers.BatchNormalization(epsilon=0.1, scale=False)  # follows nothing that it could be folded into
    return keras.Sequential([keras.Input((9, 9, 3), name="images"), before, *stack], name="sequential")


def functional():
    """Two branches, which share their beginning, and a net within the net."""
    images = keras.Input((9, 9, 3), name="images")
    first = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same", name="shared")(images))
    inner = keras.Sequential([layers.DepthwiseConv2D(3, padding="same"), layers.BatchNormalization(center=False)])
    second = layers.BatchNormalization()(layers.add([inner(first), first]))
    return keras.Model(images, {"all": layers.Flatten()(second), "first": layers.ReLU()(first)}, name="functional")


class Subclass(keras.Model):
    """Layers in a list, called by a loop."""

    def __init__(self):
        super().__init__(name="subclass")
        self.convolutions = [layers.Conv2D(4, 3, strides=2) for _ in range(2)]
        self.norms = [layers.BatchNormalization() for _ in range(3)]

    def call(self, images, training=None):
        for convolution, norm in zip(self.convolutions, self.norms[:2], strict=True):
            images = keras.ops.relu(norm(convolution(images), training=training))
        return self.norms[2](images, training=training)


def subclass():
    net = Subclass()
    net(np.ones((1, 9, 9, 3), "float32"))
    return net


NETS = {build.__name__: build for build in (sequential, functional, subclass)}
FOLDED = {"sequential": "2 of 3", "functional": "2 of 3", "subclass": "2 of 3"}
FUSED = {"sequential": "2 of 3", "functional": "3 of 3", "subclass": "3 of 3"}
"""The one after the dense layer is not (batch, height, width, channels)."""


@pytest.fixture(scope="module", params=NETS)
def servable(request):
    keras.utils.set_random_seed(3)
    return Servable.from_net(randomised(NETS[request.param]()))


def check_close(answers, expected, tolerance=CLOSE):
    for one, other in zip(answers, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


def run_traced(servable, arrays, **options):
    """What its graph answers."""
    tensors = {key: tf.constant(array) for key, array in servable.named(arrays).items()}
    answers = servable.trace(**options)(**tensors)
    return [answers[form.name].numpy() for form in servable.signature.outputs]


def state_of(net):
    """What a net consists of, layer by layer, and the identity of each part."""
    parts = [{key: id(value) for key, value in vars(layer).items()} for layer in net._flatten_layers()]
    return parts, [layer.dtype_policy.name for layer in net._flatten_layers()]


@pytest.mark.parametrize("combination", COMBINATIONS, ids="+".join)
def test_answers_stay(servable, combination):
    variant = servable.variant(transformations=combination)
    assert variant.signature == servable.signature
    assert list(variant.changes) == list(combination)
    for batch in (1, 5):
        arrays = servable.signature.random_inputs(batch, seed=batch)
        expected = servable.reference(arrays)
        check_close(variant.reference(arrays), expected)
        check_close(run_traced(variant, arrays), expected)
    check_close(run_traced(variant, arrays, batch=batch, jit_compile=True), expected)  # compiling takes long


def test_it_says_what_it_did(servable):
    name = servable.net.name
    assert servable.variant(transformations=[FOLD]).changes == {FOLD: f"{FOLDED[name]} batch normalizations folded"}
    assert servable.variant(transformations=[FUSE]).changes == {FUSE: f"{FUSED[name]} batch normalizations fused"}
    both = servable.variant(transformations=[FOLD, FUSE]).changes
    assert both == {FOLD: f"{FOLDED[name]} batch normalizations folded", FUSE: "1 of 3 batch normalizations fused"}


def test_the_graph_has_what_it_says(servable):
    def count(transformations, kind):
        definition = servable.variant(transformations=transformations).trace().graph.as_graph_def()
        return sum(node.op == kind for node in definition.node)

    fused = int(FUSED[servable.net.name][0])
    assert count([], "Rsqrt") == 3
    assert count([FOLD], "Rsqrt") == 1
    assert [count(one, "FusedBatchNormV3") for one in ([], [FOLD], [FUSE], [FOLD, FUSE])] == [0, 0, fused, 1]
    assert count([FOLD, FUSE], "Rsqrt") == 0
    assert count([FUSE], "Rsqrt") == 3 - fused


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("combination", [(FOLD,), (FUSE,), (FOLD, FUSE)], ids="+".join)
def test_lower_precisions_are_inside(servable, precision, combination):
    variant = servable.variant(precision, combination)
    heavy = {"Conv2D", "DepthwiseConv2dNative", "MatMul", "FusedBatchNormV3", "BiasAdd"}
    operations = [op for op in variant.trace().graph.get_operations() if op.type in heavy]
    assert {op.outputs[0].dtype.name for op in operations} == {precision}
    arrays = servable.signature.random_inputs(4)
    expected = servable.reference(arrays)
    check_close(variant.reference(arrays), expected, {"bfloat16": 3e-2, "float16": 5e-3}[precision])
    assert max(np.abs(a - b).max() for a, b in zip(variant.reference(arrays), expected, strict=True)) > 1e-5


@pytest.mark.parametrize("combination", COMBINATIONS, ids="+".join)
def test_the_net_is_left_as_it_was(servable, combination):
    net = servable.net
    arrays = servable.signature.random_inputs(3)
    weights, before, expected = net.get_weights(), state_of(net), servable.reference(arrays)
    variant = servable.variant("bfloat16", combination)
    variant.reference(arrays)
    variant.trace(3)
    assert state_of(net) == before
    for one, other in zip(net.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(servable.reference(arrays), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_are_restored_after_an_error_too():
    layer = layers.Dense(2)
    layer.build((1, 2))
    x = np.ones((1, 2), "float32")
    with calling({layer: lambda inputs: inputs * 3}):
        np.testing.assert_array_equal(layer(x), 3 * x)
    with pytest.raises(ZeroDivisionError), calling({layer: lambda inputs: 1 / 0}):
        layer(x)
    assert "call" not in vars(layer)


@pytest.mark.parametrize("combination", [(FOLD,), (FOLD, FUSE), (FOLD, CONSTANT)], ids="+".join)
def test_saved_and_loaded_it_answers_the_same(servable, combination, tmp_path):
    variant = servable.variant(transformations=combination)
    variant.save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved")
    arrays = servable.signature.random_inputs(3)
    expected = dict(zip([form.name for form in servable.signature.outputs], servable.reference(arrays), strict=True))
    check_close(saved.reference(arrays), [expected[form.name] for form in saved.signature.outputs])
    stored = tf.train.list_variables(str(tmp_path / "saved" / "variables" / "variables"))
    scales = [name for name, shape in stored if "moving" in name or "gamma" in name]
    assert scales == []
    assert (len(stored) == 1) == (CONSTANT in combination)  # TensorFlow's own list of what there is


def test_folded_weights_are_those_of_the_moment_and_fused_ones_of_the_call():
    servable = Servable.from_net(randomised(sequential()))
    arrays = servable.signature.random_inputs(2)
    folded, fused = (servable.variant(transformations=[one]) for one in (FOLD, FUSE))
    before = servable.reference(arrays)
    for norm in servable.net.layers:
        if isinstance(norm, layers.BatchNormalization):
            norm.moving_mean.assign_add(keras.ops.ones(norm.moving_mean.shape))
    after = servable.reference(arrays)
    assert np.abs(after[0] - before[0]).max() > 0.1
    check_close(fused.reference(arrays), after)
    assert np.abs(folded.reference(arrays)[0] - after[0]).max() > 0.01


def float64(variable):
    return variable.numpy().astype("float64")


def by_hand(layer, x):
    """The outputs of a layer without its bias, in float64: of stride 1, with no padding. (batch, ..., channels)."""
    if isinstance(layer, layers.Dense):
        return x @ float64(layer.kernel)
    size = layer.kernel_size
    if "Transpose" in type(layer).__name__:
        kernel = float64(layer.kernel)  # (..., out, in)
        spread = [there + k - 1 for there, k in zip(x.shape[1:-1], size, strict=True)]
        made = np.zeros((len(x), *spread, layer.filters))
        for place in np.ndindex(*size):
            target = tuple(slice(at, at + there) for at, there in zip(place, x.shape[1:-1], strict=True))
            made[(slice(None), *target)] += x @ kernel[place].T
        return made
    windows = np.lib.stride_tricks.sliding_window_view(x, size, tuple(range(1, len(size) + 1)))
    windows = windows.reshape(*windows.shape[: x.ndim], -1)  # (batch, ..., channels, places)
    separable = isinstance(layer, layers.SeparableConv1D | layers.SeparableConv2D)
    kernel = float64(layer.depthwise_kernel if separable else layer.kernel)
    kernel = kernel.reshape(-1, *kernel.shape[-2:])  # (places, channels, outputs)
    if not separable and not isinstance(layer, layers.DepthwiseConv1D | layers.DepthwiseConv2D):
        return np.einsum("...cp,pco->...o", windows, kernel)
    made = np.einsum("...cp,pcm->...cm", windows, kernel)
    made = made.reshape(*made.shape[:-2], -1)
    return made @ float64(layer.pointwise_kernel).squeeze() if separable else made


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: kind.__name__)
def test_each_layer_answers_as_by_hand_in_float64(kind, use_bias):
    rank = 0 if kind is layers.Dense else int(kind.__name__.split("Conv")[1][0])
    size = [] if kind is layers.Dense else [2]
    multiplier = {"depth_multiplier": 2} if kind.__name__.startswith(("Depthwise", "Separable")) else {}
    amount = [] if kind.__name__.startswith("Depthwise") else [5]
    for center, scale in ((True, True), (False, False)):
        layer = kind(*amount, *size, use_bias=use_bias, **multiplier)
        norm = layers.BatchNormalization(center=center, scale=scale, epsilon=0.01)
        net = randomised(keras.Sequential([keras.Input((*[4] * rank, 3)), layer, norm]), seed=rank)
        servable = Servable.from_net(net)
        (x,) = servable.signature.random_inputs(2)
        made = by_hand(layer, x.astype("float64"))
        made = made + (float64(layer.bias) if use_bias else 0) - float64(norm.moving_mean)
        expected = made / np.sqrt(float64(norm.moving_variance) + 0.01)
        if center:
            expected = expected * float64(norm.gamma) + float64(norm.beta)
        (answer,) = servable.variant(transformations=[FOLD]).reference([x])
        assert np.abs(answer - expected).max() <= CLOSE * np.abs(expected).max()
        (own,) = servable.reference([x])
        assert np.abs(own - expected).max() <= CLOSE * np.abs(expected).max()  # else this test's sums are wrong


@st.composite
def settings_of_convolutions(draw):
    kind = draw(st.sampled_from([layers.Conv1D, layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv1D]))
    strides, dilation = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    paddings = ["valid", "same", "causal"] if kind is layers.Conv1D else ["valid", "same"]
    given = {"kernel_size": draw(st.integers(1, 3)), "strides": strides, "dilation_rate": dilation}
    given |= {"padding": draw(st.sampled_from(paddings)), "use_bias": draw(st.booleans())}
    if kind in (layers.Conv1D, layers.Conv2D):
        groups = draw(st.sampled_from([1, 2]))
        given |= {"filters": groups * draw(st.integers(1, 3)), "groups": groups}
    else:
        given |= {"depth_multiplier": draw(st.integers(1, 2))}
        given |= {"filters": draw(st.integers(1, 3))} if kind is layers.SeparableConv1D else {}
    norm = {"center": draw(st.booleans()), "scale": draw(st.booleans()), "epsilon": draw(st.sampled_from([1e-5, 0.1]))}
    return kind, given, norm, draw(st.integers(0, 2**16))


@settings(max_examples=12, deadline=None)
@given(settings_of_convolutions())
def test_convolutions_of_any_settings_answer_the_same(drawn):
    kind, given_to_layer, given_to_norm, seed = drawn
    rank = int(kind.__name__.split("Conv")[1][0])
    keras.utils.set_random_seed(seed)
    stack = [kind(**given_to_layer), layers.BatchNormalization(**given_to_norm)]
    net = randomised(keras.Sequential([keras.Input((*[7] * rank, 4)), *stack]), seed)
    servable = Servable.from_net(net)
    arrays = servable.signature.random_inputs(2, seed=seed)
    variant = servable.variant(transformations=[FOLD])
    assert variant.changes == {FOLD: "1 of 1 batch normalizations folded"}
    check_close(run_traced(variant, arrays), run_traced(servable, arrays))


def net_of(build, shape=(8, 8, 3)):
    """A functional net of what a function makes of its input."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape, name="x")
    return randomised(keras.Model(inputs, build(inputs), name="edge"))


def conv(**changes):
    return layers.Conv2D(**{"filters": 4, "kernel_size": 3, "padding": "same"} | changes)


def with_activation(x):
    return layers.BatchNormalization()(conv(activation="relu")(x))


def with_layer_between(x):
    return layers.BatchNormalization()(layers.ReLU()(conv()(x)))


def of_two_norms(x):
    made = conv()(x)
    return layers.add([layers.BatchNormalization()(made), layers.BatchNormalization()(made)])


def used_beside(x):
    made = conv()(x)
    return layers.add([layers.BatchNormalization()(made), made])


def given_beside(x):
    made = conv()(x)
    return {"a": layers.BatchNormalization()(made), "b": made}


def conv_twice(x):
    shared = conv(filters=3)
    return shared(layers.BatchNormalization()(shared(x)))


def norm_twice(x):
    norm = layers.BatchNormalization()
    return norm(layers.ReLU()(norm(conv()(x))))


def other_axis(x):
    return layers.BatchNormalization(axis=1)(conv()(x))


def channels_first(x):
    """A row has as many numbers as there are channels."""
    return layers.BatchNormalization()(conv(filters=3, data_format="channels_first")(x))


def subclass_of_conv(x):
    class Mine(layers.Conv2D):
        pass

    return layers.BatchNormalization()(Mine(4, 3)(x))


def subclass_of_norm(x):
    class Mine(layers.BatchNormalization):
        pass

    return Mine()(conv()(x))


def with_penalty(x):
    """What the penalty looks at would be something else."""
    return layers.BatchNormalization()(conv(activity_regularizer="l2")(x))


def with_low_rank_update(x):
    return layers.BatchNormalization()(conv(lora_rank=1)(x))


def instance_with_its_own_call(x):
    layer = conv()
    layer.call = lambda inputs: 2 * layers.Conv2D.call(layer, inputs)
    return layers.BatchNormalization()(layer(x))


def of_other_type(x):
    return layers.BatchNormalization()(conv(dtype="float64")(x))


NOT_FOLDABLE = {
    with_activation: 1,
    with_layer_between: 1,
    of_two_norms: 2,
    used_beside: 1,
    given_beside: 1,
    conv_twice: 1,
    norm_twice: 1,
    other_axis: 0,
    channels_first: 1,
    subclass_of_conv: 1,
    subclass_of_norm: 0,
    with_penalty: 1,
    with_low_rank_update: 1,
    instance_with_its_own_call: 1,
    of_other_type: 1,
}
"""What makes a net -> how many of its normalizations can be fused."""


@pytest.mark.parametrize("build", NOT_FOLDABLE, ids=lambda build: build.__name__)
def test_what_cannot_be_folded_is_left_alone(build):
    servable = Servable.from_net(net_of(build))
    found = servable.batch_norms()
    assert found.foldable == []
    assert len(found.fusable) == NOT_FOLDABLE[build]
    with pytest.raises(EngineError, match=r"^net 'edge' has no batch normalization that can be folded$"):
        servable.variant(transformations=[FOLD])
    if not found.fusable:
        with pytest.raises(EngineError, match=r"^net 'edge' has no batch normalization that can be fused$"):
            servable.variant(transformations=[FUSE])
        return
    arrays = servable.signature.random_inputs(3)
    try:
        expected = servable.reference(arrays)
    except tf.errors.UnimplementedError as error:  # without oneDNN, which TensorFlow takes where the CPU has VNNI
        pytest.skip(f"TensorFlow cannot run the net on this CPU: {str(error).splitlines()[0]}")
    check_close(servable.variant(transformations=[FUSE]).reference(arrays), expected)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras 3.15's own, as it quantizes
def test_quantized_layers_keep_their_numbers():
    net = net_of(lambda x: layers.BatchNormalization()(layers.Dense(4)(x)), (6,))
    assert len(Servable.from_net(net).batch_norms().foldable) == 1
    net.layers[1].quantize("int8")
    assert Servable.from_net(net).batch_norms().foldable == []


def test_what_is_left_after_folding_is_nothing_to_fuse():
    servable = Servable.from_net(net_of(lambda x: layers.BatchNormalization()(conv()(x))))
    with pytest.raises(EngineError, match=r"^net 'edge' has no batch normalization left that can be fused$"):
        servable.variant(transformations=[FOLD, FUSE])


class Odd(keras.Model):
    """Normalizes after a convolution, as its function says."""

    def __init__(self, through):
        super().__init__(name="odd")
        self.conv, self.norm, self.through = layers.Conv2D(3, 3, padding="same"), layers.BatchNormalization(), through

    def call(self, x, training=None):
        return self.through(self, x)


def odd(through):
    keras.utils.set_random_seed(2)
    net = Odd(through)
    net(np.ones((1, 4, 4, 3), "float32"))
    return Servable.from_net(randomised(net))


@pytest.mark.parametrize(("trainable", "number"), [(True, 0), (False, 1)])
def test_a_norm_that_always_trains_is_left_alone(trainable, number):
    servable = odd(lambda net, x: net.norm(net.conv(x), training=True))
    servable.net.norm.trainable = trainable
    found = servable.batch_norms()
    assert (len(found.foldable), len(found.fusable), found.total) == (number, number, 1)


def test_a_branch_is_another_graph():
    def branch(net, x):
        made = net.conv(x)
        return tf.cond(tf.reduce_sum(x) > 0, lambda: net.norm(made), lambda: made)

    found = odd(branch).batch_norms()
    assert (found.foldable, found.fusable) == ([], [])


def test_a_function_within_the_net_keeps_its_trace():
    """Else the net would answer with the weights of a variant."""
    function = tf.function(lambda net, x: net.norm(net.conv(x)))
    servable = odd(function)
    assert (servable.batch_norms().foldable, servable.batch_norms().fusable) == ([], [])
    fresh = odd(lambda net, x: tf.function(lambda x: net.norm(net.conv(x)))(x))
    assert (fresh.batch_norms().foldable, fresh.batch_norms().fusable) == ([], [])


def test_a_net_that_calls_otherwise_than_it_was_traced_is_refused():
    state = {"doubled": False}
    servable = odd(lambda net, x: net.norm(net.conv(x) * 2 if state["doubled"] else net.conv(x)))
    variant = servable.variant(transformations=[FOLD])
    arrays = servable.signature.random_inputs(2)
    check_close(variant.reference(arrays), servable.reference(arrays))
    state["doubled"] = True
    with pytest.raises(ExportError, match=r"expected 'batch_normalization\w*' to follow 'conv2d\w*', as in the net's "):
        variant.reference(arrays)
    state["doubled"] = False
    check_close(variant.reference(arrays), servable.reference(arrays))
    assert all("call" not in vars(layer) for layer in servable.net.layers)


def test_a_net_without_norms_has_none():
    found = Servable.from_net(net_of(lambda x: conv()(x))).batch_norms()
    assert found == ([], [], 0)


def test_double_precision_is_folded_in_its_own():
    def build(x):
        return layers.BatchNormalization(dtype="float64")(conv(dtype="float64")(x))

    servable = Servable.from_net(net_of(build))
    assert len(servable.batch_norms().fusable) == 0  # the operation has no such kernel
    arrays = servable.signature.random_inputs(2)
    check_close(servable.variant(transformations=[FOLD]).reference(arrays), servable.reference(arrays), 1e-12)


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_layers_in_a_faster_form_are_those_of_keras(build):
    """`tfperf.training.fuse` changes their classes; an export computes as Keras does, and is transformed as Keras's."""
    keras.utils.set_random_seed(3)
    net = randomised(build())
    arrays = [np.random.default_rng(0).normal(size=(2, 9, 9, 3)).astype("float32")]
    plain = Servable.from_net(net)
    expected = plain.reference(arrays)
    kinds = [op.type for op in plain.trace().graph.get_operations()]
    fusion = fuse_layers(net, arrays[0], measure=False)
    assert {one.form for one in fusion.swaps} >= {"FusedBatchNormalization", "SwappedConv2D"}
    own = [type(layer) for layer in net._flatten_layers()]
    servable = Servable.from_net(net)
    for one, other in zip(servable.reference(arrays), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [op.type for op in servable.trace().graph.get_operations()] == kinds
    for combination in COMBINATIONS:
        variant = servable.variant(transformations=combination)
        check_close(variant.reference(arrays), expected)
        check_close(run_traced(variant, arrays), expected)
    assert variant.changes[FOLD] == f"{FOLDED[net.name]} batch normalizations folded"
    assert [type(layer) for layer in net._flatten_layers()] == own


def test_a_subclass_of_a_faster_form_is_left_alone():
    class Mine(FusedBatchNormalization):
        def call(self, inputs, training=None, mask=None):
            return super().call(inputs, training=training, mask=mask) * 2

    net = keras.Sequential([keras.Input((4, 4, 3)), conv(), Mine()])
    x = np.ones((1, 4, 4, 3), "float32")
    np.testing.assert_allclose(Servable.from_net(net).reference([x])[0], net(x), rtol=1e-5)
    assert Servable.from_net(net).batch_norms().foldable == []
