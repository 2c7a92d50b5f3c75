"""What every net promises: logits in float32, the policy elsewhere, gradients, saving, compiling."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.nets import NAMES, get_net

COMPUTE_DTYPES = {
    "float32": "float32",
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
}

every_net = pytest.mark.parametrize("name", NAMES)
every_policy = pytest.mark.parametrize("policy", COMPUTE_DTYPES)

# Keras 3.15 reads a variable with np.array(copy=False), which a TensorFlow 2.21 tensor does not know.
# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
old_array_protocol = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


@every_net
def test_a_net_bears_its_name_and_takes_any_batch(name, examples) -> None:
    net = get_net(name)
    assert isinstance(net, keras.Model)
    assert net.built
    assert net.name == name
    assert net.input_shape[0] is None
    for batch in (1, 5):
        assert net(examples(net, batch)).shape == (batch, net.output_shape[-1])


@every_net
def test_num_classes_is_the_width_of_the_logits(name) -> None:
    assert get_net(name, num_classes=37).output_shape == (None, 37)


@every_net
@every_policy
def test_logits_are_float32_and_the_rest_follows_the_policy(name, policy, examples, use_policy) -> None:
    use_policy(policy)
    net = get_net(name, seed=0)
    *others, last = net.layers
    assert {layer.dtype_policy.name for layer in others} == {policy}
    assert last.input.dtype == COMPUTE_DTYPES[policy]  # what arrives at the last layer was computed so
    logits = net(examples(net))
    assert logits.dtype == tf.float32
    assert np.isfinite(logits).all()


@every_net
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_is_near_float32_and_not_equal_to_it(name, policy, examples, use_policy) -> None:
    reference = get_net(name, seed=0)
    expected = reference(examples(reference)).numpy()
    use_policy(policy)
    logits = get_net(name, seed=0)(examples(reference)).numpy()
    # 8 bits of significand in bfloat16, 11 in float16; errors of a few roundings
    allowed = {"mixed_float16": 0.01, "mixed_bfloat16": 0.05}[policy] * np.abs(expected).max()
    assert 0 < np.abs(logits - expected).max() < allowed


@every_net
def test_outputs_are_logits_without_a_softmax(name, examples) -> None:
    net = get_net(name, seed=0)
    last = net.layers[-1]
    assert last.activation is keras.activations.linear
    before = net(examples(net)).numpy()
    last.kernel.assign(last.kernel * 1000.0)  # the bias is 0: a linear end grows with its kernel
    np.testing.assert_allclose(net(examples(net)).numpy(), before * 1000.0, rtol=1e-4, atol=1e-2)


@every_net
def test_every_trainable_weight_gets_a_gradient(name, examples) -> None:
    net = get_net(name, seed=0)
    labels = np.arange(16) % net.output_shape[-1]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        # Inference mode: in training, normalization subtracts the bias of the convolution before it.
        loss = loss_of(labels, net(examples(net, 16), training=False))
    weights = net.trainable_weights
    gradients = tape.gradient(loss, [weight.value for weight in weights])
    for weight, gradient in zip(weights, gradients, strict=True):
        assert gradient is not None, weight.path
        array = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(array).all(), weight.path
        # A bias of the keys adds the same to every score of a query, and softmax ignores that.
        if not weight.path.endswith("attention/key/bias"):
            assert np.abs(array).max() > 0, weight.path


@every_net
def test_training_on_logits_learns(name, examples) -> None:
    net = get_net(name, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    inputs = examples(net, 4)
    labels = np.arange(4) % net.output_shape[-1]
    history = net.fit(inputs, labels, epochs=12, batch_size=4, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]


@every_net
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_xla_compiles_it_and_agrees(name, policy, examples, use_policy) -> None:
    use_policy(policy)
    net = get_net(name, seed=0)
    inputs = tf.constant(examples(net))
    compiled = tf.function(net, jit_compile=True)
    tolerance = {"float32": 1e-5, "mixed_bfloat16": 0.05}[policy]
    expected = net(inputs).numpy()
    np.testing.assert_allclose(compiled(inputs).numpy(), expected, atol=tolerance * np.abs(expected).max())
    assert "HloModule" in compiled.experimental_get_compiler_ir(inputs)(stage="hlo")


@every_net
@old_array_protocol
def test_the_keras_file_loads_in_safe_mode_with_equal_outputs(name, examples, tmp_path) -> None:
    net = get_net(name, seed=0)
    path = tmp_path / "net.keras"
    net.save(path)
    loaded = keras.models.load_model(path, safe_mode=True)
    assert loaded.name == name
    np.testing.assert_array_equal(loaded(examples(net)).numpy(), net(examples(net)).numpy())


@every_net
@old_array_protocol
def test_the_exported_saved_model_has_equal_outputs_for_any_batch(name, examples, tmp_path) -> None:
    net = get_net(name, seed=0)
    net.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")  # held here: it owns the variables of its functions
    for batch in (1, 4):
        inputs = examples(net, batch)
        np.testing.assert_allclose(loaded.serve(inputs).numpy(), net(inputs).numpy(), rtol=1e-6, atol=1e-6)
