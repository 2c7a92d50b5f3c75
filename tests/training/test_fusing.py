"""`fuse` finds the layers of any model, changes those that pay, and leaves what the model computes as it was."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.exports import export, verify
from tfperf.measure import Ratio, Verdict
from tfperf.training import fast_optimizer, fuse, fusing, unfuse, xla_function
from tfperf.training.fusing import LayerTimes
from tfperf.training.saved_form import form_name, plain_class

IMAGES = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
CLASSES = np.random.default_rng(1).integers(0, 4, 16)


def functional():
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(8, 3, padding="same", name="first")(inputs)
    hidden = keras.layers.ReLU(name="relu")(keras.layers.BatchNormalization(name="norm")(hidden))
    added = keras.layers.Conv2D(8, 3, padding="same", name="second")(hidden)
    hidden = keras.layers.GlobalAveragePooling2D()(keras.layers.Add()([hidden, added]))
    return keras.Model(inputs, keras.layers.Dense(4)(hidden))


def sequential():
    layers = [keras.layers.Conv2D(8, 3, name="first"), keras.layers.BatchNormalization(name="norm")]
    nested = keras.Sequential([keras.layers.Conv2D(8, 3, 2, name="second")])
    return keras.Sequential([keras.Input((8, 8, 3)), *layers, nested, keras.layers.Flatten(), keras.layers.Dense(4)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Conv2D(8, 3, name="first")
        self.parts = [keras.layers.BatchNormalization(name="norm"), keras.layers.Conv2D(8, 3, name="second")]
        self.last = keras.layers.Dense(4)

    def call(self, inputs, training=None):
        hidden = self.first(inputs)
        for part in self.parts:
            hidden = part(hidden)
        return self.last(tf.reduce_mean(hidden, [1, 2]))


MODELS = {"functional": functional, "sequential": sequential, "subclassed": Subclassed}


def made(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    model(IMAGES)
    return model


def train(model, steps=20):
    """The losses of some steps."""
    return [float(model.train_on_batch(IMAGES, CLASSES)) for _ in range(steps)]


def compiled(model, optimizer):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_fused_model_computes_and_trains_as_it_did(name, tmp_path):
    plain, fused = (compiled(made(name), keras.optimizers.SGD(0.05)) for _ in range(2))
    fused.set_weights(plain.get_weights())
    train(fused, 1), train(plain, 1)  # a trace of what it was must not stay
    fusion = fuse(fused, IMAGES, measure=False)
    assert fusion.model is fused
    forms = {"first": "SwappedConv2D", "norm": "FusedBatchNormalization", "second": "SwappedConv2D"}
    assert {one.layer: one.form for one in fusion.swaps} == forms
    assert all(one.kept and one.times is None for one in fusion.swaps)
    np.testing.assert_allclose(fused(IMAGES), plain(IMAGES), atol=1e-5)
    assert train(fused) == pytest.approx(train(plain), abs=1e-4)
    for one, other in zip(fused.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    fused.save_weights(tmp_path / "net.weights.h5")
    plain.load_weights(tmp_path / "net.weights.h5")
    unfuse(fused)
    assert all(type(layer) is plain_class(layer) for layer in fused._flatten_layers())
    np.testing.assert_array_equal(fused(IMAGES), plain(IMAGES))


def test_what_the_trace_computes_is_the_faster_form():
    model = made("functional")
    fuse(model, batch_size=16, measure=False)
    traced = tf.function(lambda images: model(images, training=True)).get_concrete_function(tf.constant(IMAGES))
    assert [one.type for one in traced.graph.get_operations()].count("FusedBatchNormV3") == 1


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_what_is_faster_is_kept_and_the_rest_stays(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    keras.config.set_dtype_policy(policy)
    try:
        model = made("functional")
    finally:
        keras.config.set_dtype_policy("float32")
    told = []
    fusion = fuse(model, batch_size=16, time_limit=0.05, on_progress=told.append)
    shapes = {"first": (16, 8, 8, 3), "norm": (16, 8, 8, 8), "relu": (16, 8, 8, 8), "second": (16, 8, 8, 8)}
    if policy == "float32":  # in which ReLU has no other form
        del shapes["relu"]
    assert {one.layer: one.shape for one in fusion.swaps} == shapes
    assert len(told) == len(fusion.swaps) == len(shapes)
    for one in fusion.swaps:
        layer, ratio = model.get_layer(one.layer), one.times.ratio
        assert one.kept == (ratio.verdict == "faster") == (type(layer) is not plain_class(layer))
        assert one.saves_seconds == pytest.approx((one.times.plain_seconds - one.times.fast_seconds) * one.kept)
        assert not one.kept or form_name(type(layer)) == one.form
    lines = str(fusion).splitlines()
    assert len(lines) == 1 + len(shapes)
    assert all(one.layer in line for one, line in zip(fusion.swaps, lines[1:], strict=True))


@pytest.mark.parametrize(
    ("verdicts", "measurements"),
    [(["faster"], 1), (["no difference"], 1), (["too noisy to say", "faster"], 2), (["too few rounds", "slower"], 2)],
)
def test_what_is_decided_is_kept_and_the_rest_measured_again(verdicts, measurements, tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    made_so_far = []

    def measured(*_):
        verdict = Verdict(verdicts[len(made_so_far)])
        made_so_far.append(verdict)
        ratio = Ratio(baseline="plain", candidate="fast", estimate=1.5, low=1.2, high=1.8, verdict=verdict)
        return LayerTimes(plain_seconds=3.0, fast_seconds=2.0, ratio=ratio)

    monkeypatch.setattr(fusing, "_measured", measured)
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, keras.layers.Conv2D(4, 3, padding="same")(inputs))
    for _ in range(3):
        last = fuse(model).swaps[0].times.ratio.verdict
        unfuse(model)
    assert len(made_so_far) == measurements
    assert last == verdicts[-1]


@pytest.mark.filterwarnings("ignore:training goes on without")
def test_what_was_measured_without_a_compiler_is_measured_again_with_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    is_there = functools.cache(xla_function.is_there.__wrapped__)
    monkeypatch.setattr(xla_function, "is_there", is_there)
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, keras.layers.Conv2D(4, 3, padding="same")(inputs))
    for compiler in ("/no/such/compiler", "c++", "c++"):
        monkeypatch.setenv("CXX", compiler)
        is_there.cache_clear()
        fuse(model, time_limit=0.05)
        unfuse(model)
    assert len(list(tmp_path.rglob("layer-*.json"))) == 2


def test_groups_are_not_waited_for(monkeypatch):
    """TensorFlow's own code for them may take minutes a call."""
    monkeypatch.setattr(fusing, "_measured", None)  # it would be called
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, keras.layers.Conv2D(4, 3, groups=2, name="grouped")(inputs))
    (swap,) = fuse(model).swaps
    assert (swap.layer, swap.kept, swap.times) == ("grouped", True, None)
    assert str(swap) == "grouped (32, 8, 8, 4): SwappedConv2D"


def test_two_layers_alike_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    inputs = keras.Input((8, 8, 4))
    hidden = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    model = keras.Model(inputs, keras.layers.Conv2D(4, 3, padding="same")(hidden))
    one, other = fuse(model, time_limit=0.05).swaps
    assert one.times == other.times
    assert len(list(tmp_path.rglob("layer-*.json"))) == 1


def test_all_of_it_under_a_strategy():
    losses = []
    for changed in (False, True):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model, optimizer = made("functional"), keras.optimizers.Adam(0.01)
            if changed:
                fuse(model, measure=False)
                fast_optimizer(optimizer)
            compiled(model, optimizer)
        losses.append(model.fit(IMAGES, CLASSES, batch_size=8, epochs=4, shuffle=False, verbose=0).history["loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


def without_bias():
    """No bias before a batch normalization: its gradient is rounding alone, which Adam scales up."""
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    hidden = keras.layers.ReLU()(keras.layers.BatchNormalization()(hidden))
    hidden = keras.layers.Conv2D(8, 3, 2, activation="relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(hidden)))


MIRRORED_OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
}


def train_mirrored(optimizer, changed):
    """The losses, all weights and the second replica's trainable ones, of training on two replicas."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = without_bias(), MIRRORED_OPTIMIZERS[optimizer]()
        if changed:
            fuse(model, batch_size=4, measure=False)
            fast_optimizer(optimizer)
        compiled(model, optimizer)
    losses = model.fit(IMAGES, CLASSES, batch_size=8, epochs=4, shuffle=False, verbose=0).history["loss"]
    replicas = [strategy.experimental_local_results(variable.value) for variable in model.trainable_variables]
    return losses, model.get_weights(), [second.numpy() for _, second in replicas]


@pytest.mark.parametrize("optimizer", MIRRORED_OPTIMIZERS)
def test_all_of_it_on_two_replicas(optimizer, two_devices):
    plain_losses, plain, _ = two_devices(train_mirrored, optimizer, False)
    losses, weights, second = two_devices(train_mirrored, optimizer, True)
    assert losses == pytest.approx(plain_losses, abs=1e-4)
    for one, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    trainable = {one.tobytes() for one in weights}
    assert {one.tobytes() for one in second} <= trainable  # the replicas are equal to the bit


@pytest.mark.parametrize("unfused", [False, True])
@pytest.mark.parametrize(
    ("name", "policy"),
    [*((name, "float32") for name in MODELS), ("functional", "mixed_bfloat16"), ("subclassed", "mixed_bfloat16")],
)  # a net within a net casts to its input in bfloat16, exported or not
def test_what_is_exported_computes_as_the_model(name, policy, unfused, tmp_path):
    """An export is in float32 whatever the policy: what is right is said by a plain model with these weights."""
    keras.config.set_dtype_policy(policy)
    try:
        model = compiled(made(name), "sgd")
    finally:
        keras.config.set_dtype_policy("float32")
    fuse(model, IMAGES, measure=False)
    train(model, 3)
    if unfused:
        unfuse(model)
    plain = made(name)
    plain.set_weights(model.get_weights())
    folder = export(model, tmp_path, name="net", example=None if name != "subclassed" else IMAGES)
    assert verify(folder).manifest.name == "net"
    loaded = tf.saved_model.load(str(folder))
    (outputs,) = loaded.signatures["serving_default"](tf.constant(IMAGES)).values()
    np.testing.assert_allclose(outputs, plain(IMAGES), atol=1e-5)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("unfused", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_keras_s_own_export_computes_as_the_model(name, unfused, tmp_path):
    model = compiled(made(name), "sgd")
    fuse(model, IMAGES, measure=False)
    train(model, 3)
    if unfused:
        unfuse(model)
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))  # held here: it owns the variables of its functions
    for batch in (1, 16):
        np.testing.assert_allclose(loaded.serve(IMAGES[:batch]), model(IMAGES[:batch]), atol=1e-6)


def test_a_model_that_declares_no_shapes_asks_for_inputs():
    with pytest.raises(
        ValueError, match=r"^expected a batch of inputs, as the model 'subclassed[^\n]*declares no shapes$"
    ):
        fuse(Subclassed())
    model = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(4, 3)])
    with pytest.raises(ValueError, match=r"^expected a batch of inputs[^\n]*\(None, None, None, 3\)$"):
        fuse(model)


def test_a_layer_of_the_users_own_stays():
    class Mine(keras.layers.Conv2D):
        def call(self, inputs):
            return super().call(inputs) * 2

    model = keras.Sequential([keras.Input((8, 8, 3)), Mine(4, 3)])
    assert fuse(model, measure=False).swaps == ()
    assert type(model.layers[0]) is Mine


class Unsaved(keras.regularizers.Regularizer):
    """A regularizer that Keras cannot make anew: it tells nothing of itself."""

    def __call__(self, weights):
        return tf.reduce_sum(weights) * 1e-3


def mine(numbers):
    """An activation that Keras does not know by its name."""
    return numbers * 2


OF_THE_USERS_OWN = {
    "lambda": {"activation": lambda numbers: numbers * 2},
    "activation": {"activation": mine},
    "initializer": {"kernel_initializer": lambda shape, dtype=None: tf.ones(shape, dtype)},
    "regularizer": {"kernel_regularizer": Unsaved()},
}


@pytest.mark.parametrize("what", OF_THE_USERS_OWN)
def test_what_keras_cannot_make_anew_stays_and_the_rest_is_fused(what, tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    ratio = Ratio(baseline="plain", candidate="fast", estimate=1.5, low=1.2, high=1.8, verdict=Verdict.FASTER)
    times = LayerTimes(plain_seconds=3.0, fast_seconds=2.0, ratio=ratio)
    monkeypatch.setattr(fusing, "compare", lambda *_, **__: pytest.fail("there is nothing to compare"))
    layers = [
        keras.layers.Conv2D(4, 3, name="own", **OF_THE_USERS_OWN[what]),
        keras.layers.BatchNormalization(name="n"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    before = model(IMAGES)
    real = fusing._measured
    monkeypatch.setattr(fusing, "_measured", lambda call, *rest: times if call.layer.name == "n" else real(call, *rest))
    own, norm = fuse(model).swaps
    assert (own.layer, own.kept, own.times, own.saves_seconds) == ("own", False, None, 0.0)
    assert type(model.layers[0]) is keras.layers.Conv2D
    assert own.why_not
    assert own.why_not in str(own)
    assert "\n" not in str(own)
    assert norm.kept
    assert form_name(type(model.layers[1])) == "FusedBatchNormalization"
    np.testing.assert_allclose(model(IMAGES), before, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, [1]),
        ({"use_causal_mask": True}, [1]),
        ({"return_attention_scores": True}, []),
        ({"return_attention_scores": False, "training": True}, [1]),
    ],
)
def test_only_calls_that_a_form_computes_otherwise_are_told(options, calls):
    inputs = keras.Input((5, 6))
    attention = keras.layers.MultiHeadAttention(2, 3)
    model = keras.Model(inputs, attention(inputs, inputs, **options))
    assert [one.calls for one in fuse(model, measure=False).swaps] == calls
    assert (type(attention) is keras.layers.MultiHeadAttention) == (calls == [])


def test_the_dropout_of_attention_is_part_of_its_form():
    inputs = keras.Input((5, 6))
    attention = keras.layers.MultiHeadAttention(2, 3, dropout=0.5)
    model = keras.Model(inputs, keras.layers.Dropout(0.5)(attention(inputs, inputs)))
    assert [one.form for one in fuse(model, measure=False).swaps] == ["MergedAttention", "CompiledDropout"]


def test_a_layer_that_is_also_called_with_an_option_is_measured_by_its_other_calls():
    inputs = keras.Input((5, 6))
    attention = keras.layers.MultiHeadAttention(2, 3)
    model = keras.Model(inputs, attention(inputs, inputs) + attention(inputs, inputs, return_attention_scores=True)[0])
    (swap,) = fuse(model, measure=False).swaps
    assert (swap.calls, swap.kept) == (1, True)
