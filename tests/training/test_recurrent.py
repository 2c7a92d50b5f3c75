"""LSTM and GRU in C++ compute what Keras's do: outputs, states, gradients of every order, for any lengths and masks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.layers import EXAMPLES, FEW, POLICIES, check_near, random_inputs
from tfperf.training import CompiledGRU, CompiledLSTM, fit, fuse, recurrent, use_mixed_precision, xla_function
from tfperf.training.recurrent import KEPT
from tfperf.training.saved_form import form_name, plain_class, with_class

FORMS = {keras.layers.LSTM: CompiledLSTM, keras.layers.GRU: CompiledGRU}
KINDS = st.sampled_from(list(FORMS))
kinds = pytest.mark.parametrize("kind", FORMS)
compiled = pytest.mark.skipif(not xla_function.can_be_compiled(), reason="needs a C++ compiler, and no GPU")


@pytest.fixture
def counted(monkeypatch):
    """The names of the functions in C++ that are called, in order."""
    names, call = [], xla_function.call

    def counting(name, *arguments, **settings):
        names.append(name)
        return call(name, *arguments, **settings)

    monkeypatch.setattr(recurrent.xla_function, "call", counting)
    recurrent._through_steps.cache_clear()  # else what was traced before calls nothing
    yield names
    recurrent._through_steps.cache_clear()


def all_of(layer, sequences, states=(), **options):
    """Outputs, states, and the gradients of everything that is put in, of their cubes, as float64 arrays."""
    sources = [sequences, *states, *(one.value for one in layer.trainable_variables)]
    with tf.GradientTape() as tape:
        tape.watch([sequences, *states])
        outputs = tf.nest.flatten(layer(sequences, initial_state=list(states) or None, **options))
        total = sum(tf.reduce_sum(tf.cast(one, tf.float32) ** 3) for one in outputs)
    found = [*outputs, *tape.gradient(total, sources)]
    return [np.asarray(tf.cast(one, tf.float64)) for one in found]


def both_ways(layer, *arguments, **options):
    """The same by Keras and in C++; dropout draws the same numbers."""
    found, seeds = [], getattr(layer.cell, "seed_generator", None)
    drawn = None if seeds is None else seeds.state.numpy()
    for kind in (type(layer), FORMS[type(layer)]):
        with_class(layer, kind)
        found.append(all_of(layer, *arguments, **options))
        if seeds is not None:
            seeds.state.assign(drawn)
    with_class(layer, plain_class(layer))
    return found


@EXAMPLES
@given(data=st.data(), kind=KINDS, policy=POLICIES, training=st.booleans())
def test_a_layer_of_any_kind_is_keras_s(data, kind, policy, training):
    batch, steps, features, units = (data.draw(one) for one in (FEW, FEW, FEW, st.integers(1, 20)))
    keras.utils.set_random_seed(0)
    layer = kind(
        units, dtype=policy, bias_initializer="normal",
        use_bias=data.draw(st.booleans()),
        return_sequences=data.draw(st.booleans()),
        return_state=data.draw(st.booleans()),
        go_backwards=data.draw(st.booleans()),
        dropout=data.draw(st.sampled_from([0, 0, 0.4])),
        zero_output_for_mask=data.draw(st.booleans()),
    )  # fmt: skip
    layer.build([batch, steps, features])
    sequences = random_inputs([batch, steps, features], policy)
    mask, states = None, []
    if data.draw(st.booleans()):
        mask = tf.constant(data.draw(st.lists(st.booleans(), min_size=batch * steps, max_size=batch * steps)))
        mask = tf.reshape(mask, [batch, steps])
    if data.draw(st.booleans()):
        states = [random_inputs([batch, units], policy) for _ in layer.state_size]
    options = {"mask": mask, "training": training}
    plain, ours = both_ways(layer, sequences, states, **options)
    check_near(plain, ours, policy, lambda: whole(layer, sequences, states, **options))


def whole(layer, sequences, states, **options):
    """The same by Keras in float32, from weights as the layer rounds them, and without what its dropout drops."""
    exact = plain_class(layer).from_config(layer.get_config() | {"dtype": "float32", "dropout": 0})
    exact.build(sequences.shape)
    for one, rounded in zip(exact.trainable_variables, layer.trainable_variables, strict=True):
        one.assign(tf.cast(tf.cast(rounded, layer.compute_dtype), "float32"))
    shares = tf.ones([], sequences.dtype)
    if options["training"] and layer.cell.dropout:
        drawn = layer.cell.seed_generator.state.numpy()
        shares = tf.expand_dims(layer.cell.get_dropout_mask(sequences[:, 0]), 1)
        layer.cell.reset_dropout_mask()
        layer.cell.seed_generator.state.assign(drawn)
    states = [tf.cast(one, "float32") for one in states]
    found = all_of(exact, tf.cast(sequences * shares, "float32"), states, **options)
    place = len(found) - len(exact.trainable_variables) - len(states) - 1
    found[place] = found[place] * tf.cast(shares, tf.float64).numpy()  # the gradient of the sequences
    return found


@compiled
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("jit_compile", [None, True])
@pytest.mark.parametrize(("batch", "units"), [(1, 3), (33, 75)])
@kinds
def test_sequences_of_unknown_number_and_length_are_keras_s(kind, batch, units, jit_compile, policy):
    """Examples for several threads, more gates than are summed at a time, and widths that no register divides."""
    keras.utils.set_random_seed(0)
    steps = 4 if jit_compile else None  # XLA compiles no loop of Keras's over an unknown number of steps
    layer, sequences = kind(units, return_sequences=True, dtype=policy), random_inputs([batch, 4, 7], policy)
    layer.build([None, steps, 7])
    mask = tf.constant(np.random.default_rng(0).random([batch, 4]) < 0.7)
    signature = [tf.TensorSpec([None, steps, 7], sequences.dtype), tf.TensorSpec([None, steps], tf.bool)]
    found = []
    for form in (kind, FORMS[kind]):
        with_class(layer, form)

        @tf.function(input_signature=signature, jit_compile=jit_compile)
        def step(sequences, mask):
            with tf.GradientTape() as tape:
                outputs = layer(sequences, mask=mask, training=True)
                total = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 3)
            return [outputs, *tape.gradient(total, [one.value for one in layer.trainable_variables])]

        found.append([np.asarray(tf.cast(one, tf.float64)) for one in step(sequences, mask)])

    def exact():
        outputs, _, *gradients = whole(layer, sequences, [], mask=mask, training=True)
        return [outputs, *gradients]

    check_near(*found, policy, exact)


@compiled
@kinds
def test_many_units_are_summed_in_parts(kind):
    keras.utils.set_random_seed(0)
    layer, sequences = kind(300), random_inputs([9, 3, 5], "float32")
    layer.build(sequences.shape)
    check_near(*both_ways(layer, sequences, training=True), "float32", None)


@compiled
@kinds
def test_gradients_of_gradients_are_keras_s(kind):
    keras.utils.set_random_seed(0)
    layer, sequences = kind(3, return_sequences=True, return_state=True), random_inputs([4, 5, 2], "float32")
    layer.build(sequences.shape)
    mask, found = tf.constant(np.random.default_rng(0).random([4, 5]) < 0.7), []
    for form in (kind, FORMS[kind]):
        with_class(layer, form)
        sources = [sequences, *(one.value for one in layer.trainable_variables)]
        with tf.GradientTape() as outer:
            outer.watch(sequences)
            with tf.GradientTape() as inner:
                inner.watch(sequences)
                total = sum(tf.reduce_sum(one**3) for one in layer(sequences, mask=mask, training=True))
            penalty = sum(tf.reduce_sum(one**2) for one in inner.gradient(total, sources))
        found.append([np.asarray(one) for one in outer.gradient(penalty, sources)])
    check_near(*found, "float32", None)


@compiled
@kinds
def test_training_alone_is_native(kind, counted):
    """What is exported is loaded where there are none of its functions."""
    layer = FORMS[kind](3)
    sequences = random_inputs([2, 4, 5], "float32")
    layer(sequences, training=True)
    with tf.GradientTape():
        layer(sequences)
    assert counted == []
    with tf.GradientTape() as tape:
        outputs = layer(sequences, training=True)
    tape.gradient(outputs, layer.trainable_variables[0].value)
    assert [name.split("_", 2)[2] for name in counted] == ["f32", "gradient_f32"]


OTHERS = [
    {"activation": "relu"},
    {"recurrent_activation": "hard_sigmoid"},
    {"recurrent_dropout": 0.2},
    {"dtype": "float64"},
]


@pytest.mark.parametrize("options", OTHERS, ids=str)
@kinds
def test_what_is_left_to_keras_is_not_native(kind, options, counted):
    layer = FORMS[kind](3, **options)
    sequences = random_inputs([2, 4, 5], options.get("dtype", "float32"))
    with tf.GradientTape():
        layer(sequences, training=True)
    assert counted == []
    assert layer.suits((2, 4, 5)) == ("dtype" in options)


def test_a_gru_that_resets_before_the_product_is_left_to_keras(counted):
    layer = CompiledGRU(3, reset_after=False)
    with tf.GradientTape():
        layer(random_inputs([2, 4, 5], "float32"), training=True)
    assert counted == []


def test_without_a_compiler_it_is_keras_s(monkeypatch):
    monkeypatch.setattr(recurrent.xla_function, "is_there", lambda source: False)
    layer, sequences = keras.layers.LSTM(3), random_inputs([2, 4, 5], "float32")
    layer.build(sequences.shape)
    for plain, ours in zip(*both_ways(layer, sequences, training=True), strict=True):
        np.testing.assert_array_equal(ours, plain)


@compiled
def test_what_is_no_number_stays_in_its_example(counted):
    sequences = random_inputs([7, 4, 5], "float32").numpy()
    sequences[3, 2, 1] = np.nan
    layer = CompiledLSTM(9, return_sequences=True)
    with tf.GradientTape():
        outputs = layer(sequences, training=True).numpy()
    assert counted
    assert np.isnan(outputs[3, 2:]).all()
    assert np.isfinite(outputs[3, :2]).all()
    assert np.isfinite(np.delete(outputs, 3, axis=0)).all()


@compiled
@kinds
def test_gates_that_are_shut_and_open_are_keras_s(kind):
    """Where the exponential function has its ends, and where the hyperbolic tangent is tiny."""
    layer = kind(8, recurrent_initializer="zeros", use_bias=False)
    layer.build([4, 3, 8])
    kernel = np.zeros(layer.cell.kernel.shape, "float32")
    kernel[np.arange(8) % 8, np.arange(8) + kernel.shape[1] - 8] = 1
    layer.cell.kernel.assign(kernel)
    sizes = np.array([0, 1e-30, 1e-6, 1e-3, 0.62, 0.63, 90, 1e30], "float32")
    sequences = tf.constant(np.stack([np.tile(sign * sizes, (3, 1)) for sign in (1, -1, 0.5, -0.1)]))
    for plain, ours in zip(*both_ways(layer, sequences, training=True), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=4e-6, atol=1e-30)


def encoder_and_decoder():
    """Both directions, a state that is handed on, and layers that share a mask."""
    ids = keras.Input((6,), dtype="int32")
    embedded = keras.layers.Embedding(20, 8, mask_zero=True)(ids)
    both = keras.layers.Bidirectional(keras.layers.LSTM(5, return_sequences=True))(embedded)
    encoded, *states = keras.layers.LSTM(7, return_sequences=True, return_state=True, name="encoder")(both)
    decoded = keras.layers.LSTM(7, name="decoder")(encoded, initial_state=states)
    merged = keras.layers.GRU(7, name="merged")(encoded)
    model = keras.Model(ids, keras.layers.Dense(3)(keras.layers.Add()([decoded, merged])))
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


IDS = np.random.default_rng(0).integers(0, 20, [64, 6])
LABELS = IDS.max(axis=1) % 3


def trained(train, change=lambda model: None):
    """The losses of three epochs, and the weights after them."""
    keras.utils.set_random_seed(0)
    model = encoder_and_decoder()
    change(model)
    history = train(model, IDS, LABELS, epochs=3, batch_size=16, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights(), model


def check_alike(ours, plain):
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-4)
    for one, other in zip(ours[1], plain[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


@compiled
def test_fused_and_in_both_directions_they_train_as_keras_s(counted, tmp_path):
    plain = trained(keras.Model.fit)
    assert counted == []
    fused = trained(keras.Model.fit, lambda model: fuse(model, batch_size=16, measure=False))
    assert set(counted) == {f"tfperf_{kind}_{what}" for kind in ("lstm", "gru") for what in ("f32", "gradient_f32")}
    check_alike(fused, plain)
    fused[2].save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert type(loaded.get_layer("encoder")) is keras.layers.LSTM
    np.testing.assert_allclose(loaded(IDS), fused[2](IDS), atol=1e-6)


@compiled
def test_within_xla_they_are_native_whether_fused_or_not(counted):
    plain = trained(keras.Model.fit)
    ours = trained(lambda model, *data, **options: fit(model, *data, **options, jit_compile=True))
    assert counted
    check_alike(ours, plain)
    assert type(ours[2].get_layer("encoder")) is keras.layers.LSTM


@compiled
def test_layers_with_states_and_in_both_directions_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    swaps = {one.layer: one for one in fuse(encoder_and_decoder(), batch_size=16, time_limit=0.05).swaps}
    assert {swaps[name].form for name in ("encoder", "decoder")} == {form_name(CompiledLSTM)}
    assert swaps["merged"].form == form_name(CompiledGRU)
    assert sum("ward_lstm" in name for name in swaps) == 2
    assert all(one.times and not one.why_not for one in swaps.values())


@compiled
def test_a_model_in_half_precision_trains(counted):
    model = use_mixed_precision(encoder_and_decoder(), "mixed_bfloat16")
    fuse(model, batch_size=16, measure=False)
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(IDS, LABELS, epochs=8, batch_size=16, verbose=0).history["loss"]
    assert counted
    assert losses[-1] < losses[0]


def test_the_units_of_a_step_that_are_kept_are_as_many_in_c():
    source = (xla_function.SOURCES / f"{recurrent.SOURCE}.cc").read_text()
    assert f"constexpr int kKept = {KEPT};" in source
