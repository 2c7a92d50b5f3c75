"""`fit` as a compiled loop trains as Keras's `fit` does, and tells the callbacks the same at the end of each epoch."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.training import TrainingPlan, fast_optimizer, fit, fuse, use_mixed_precision

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 6))  # float64, which Keras trains in float32; 22 is no multiple of 4
Y = GENERATOR.integers(0, 3, 22)
WEIGHTS = GENERATOR.uniform(0.5, 2, 22)
TEST = (GENERATOR.normal(size=(9, 6)), GENERATOR.integers(0, 3, 9))


def made(**options):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    return model


class Seen(keras.callbacks.Callback):
    """Every call, by name."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append(("train begins",))

    def on_train_end(self, logs=None):
        self.calls.append(("train ends", *sorted(logs)))

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch begins", epoch))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch ends", epoch, *sorted(logs)))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("batch", batch, *sorted(logs)))


@pytest.mark.parametrize("sample_weight", [None, WEIGHTS])
@pytest.mark.parametrize("seconds_per_call", [1e-9, 10.0])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_it_trains_as_keras_s(jit_compile, seconds_per_call, sample_weight):
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0, "sample_weight": sample_weight}
    options["validation_data"] = TEST
    plain, ours = made(), made()
    expected = plain.fit(X, Y, **options)
    found = fit(ours, X, Y, seconds_per_call=seconds_per_call, jit_compile=jit_compile, **options)
    assert list(found.history) == list(expected.history)
    for name, values in expected.history.items():
        assert found.history[name] == pytest.approx(values, abs=1e-5), name
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)
    assert int(ours.optimizer.iterations) == 18  # 6 batches an epoch, the last of 2 examples


VALIDATION = {
    "a list": list(TEST),
    "weights": (*TEST, GENERATOR.uniform(0.5, 2, 9)),
    "a data set": tf.data.Dataset.from_tensor_slices((TEST[0].astype("float32"), TEST[1])).batch(5),
}


@pytest.mark.parametrize("name", VALIDATION)
def test_it_validates_as_keras_s(name):
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": VALIDATION[name]}
    expected = made().fit(X, Y, **options).history
    found = fit(made(), X, Y, **options).history
    assert list(found) == list(expected)
    for one, values in expected.items():
        assert found[one] == pytest.approx(values, abs=1e-5), one


def test_validation_data_of_four_parts_are_refused_before_anything_is_trained():
    model = made()
    with pytest.raises(ValueError, match="Data is expected to be in format"):
        fit(model, X, Y, verbose=0, validation_data=(1, 2, 3, 4))
    assert int(model.optimizer.iterations) == 0


def test_a_metric_may_have_a_number_for_each_class():
    def scored():
        model = made()
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=[keras.metrics.F1Score()])
        return model

    classes = np.eye(3, dtype="float32")[Y]
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (X, classes)}
    expected = scored().fit(X, classes, **options).history
    found = fit(scored(), X, classes, **options).history
    assert np.shape(found["f1_score"]) == (2, 3)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_it_goes_on_where_a_backup_ends(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)

    fit(made(), X, Y, epochs=2, verbose=0, callbacks=[backup()])
    seen, model = Seen(), made()
    fit(model, X, Y, epochs=5, verbose=0, callbacks=[backup(), seen])
    assert [call[1] for call in seen.calls if call[0] == "epoch begins"] == [2, 3, 4]
    assert int(model.optimizer.iterations) == 5


def test_averages_of_weights_are_written_back_as_keras_s():
    def averaged():
        model = made()
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), model.loss)
        return model

    plain, ours = averaged(), averaged()
    for initial_epoch in (0, 2):  # the second trains no epoch
        options = {"batch_size": 4, "epochs": 2, "initial_epoch": initial_epoch, "shuffle": False, "verbose": 0}
        for model in (plain, ours):
            model.layers[0].kernel.assign(np.ones([6, 8]))  # which is forgotten where averages are written back
        plain.fit(X, Y, **options)
        fit(ours, X, Y, **options)
        for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5)


def test_callbacks_see_epochs_as_in_keras_and_batches_by_the_call():
    seen, expected = Seen(), Seen()
    made().fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[expected])
    fit(made(), X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[seen], seconds_per_call=1000)
    batches = [call[1] for call in seen.calls if call[0] == "batch"]
    assert batches == [0, 1, 5, 5]  # one step, one that is timed, the rest of the epoch; then an epoch at once
    for calls in (seen.calls, expected.calls):
        calls[:] = [call for call in calls if call[0] != "batch"]
    assert seen.calls == expected.calls


def test_a_smaller_last_batch_is_a_call_of_its_own_by_xla():
    seen = Seen()
    model = made()
    fit(model, X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[seen], seconds_per_call=1000, jit_compile=True)
    assert [call[1] for call in seen.calls if call[0] == "batch"] == [0, 1, 4, 5, 4, 5]
    assert int(model.optimizer.iterations) == 12


def test_dropout_by_xla_is_another_in_each_step():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.5), layer := keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), lambda _, output: -output)  # a step adds 2 where an input stays
    before = layer.kernel.numpy().copy()
    fit(model, np.ones((40, 6), "float32"), np.zeros(40), batch_size=1, verbose=0, jit_compile=True)
    moved = layer.kernel.numpy() - before
    assert 0 < moved.min() <= moved.max() < 80


def test_a_callback_ends_it():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 1

    model = made()
    history = fit(model, X, Y, batch_size=4, epochs=5, verbose=0, callbacks=[Stop()], seconds_per_call=1e-9)
    assert int(model.optimizer.iterations) == 2
    assert len(history.history["loss"]) == 1
    early = keras.callbacks.EarlyStopping("loss", min_delta=100)
    assert len(fit(model, X, Y, epochs=5, verbose=0, callbacks=[early]).history["loss"]) == 2


@pytest.mark.parametrize("when", ["on_train_begin", "on_epoch_begin"])
def test_a_callback_that_ends_it_before_its_first_call_ends_it_after_that(when):
    def stop():
        return keras.callbacks.LambdaCallback(**{when: lambda *_: setattr(callback.model, "stop_training", True)})

    options, histories = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}, []
    for train in (keras.Model.fit, fit):
        callback, model = stop(), made()
        histories.append(train(model, X, Y, callbacks=[callback], **options).history)
        assert int(model.optimizer.iterations) == 1
    assert len(histories[0]["loss"]) == len(histories[1]["loss"]) == 1
    assert histories[1]["loss"] == pytest.approx(histories[0]["loss"], abs=1e-5)
    assert np.isfinite(histories[1]["loss"]).all()


def test_each_epoch_has_all_examples_in_another_order():
    """Each example is its own number, and the weight of number n grows by one each time that it is seen."""
    examples, orders = np.arange(10, dtype="float32")[:, None], []

    class Counting(keras.layers.Layer):
        def build(self, _):
            self.counts = self.add_weight(shape=[10], trainable=False, initializer="zeros")
            self.order = self.add_weight(shape=[], trainable=False, initializer="zeros")
            self.scale = self.add_weight(shape=[], initializer="ones")

        def call(self, inputs):
            self.counts.assign_add(tf.reduce_sum(tf.one_hot(tf.cast(inputs[:, 0], tf.int32), 10), 0))
            self.order.assign(self.order * 10 + inputs[0, 0])
            return inputs * self.scale

    model = keras.Sequential([keras.Input((1,)), layer := Counting()])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    for _ in range(3):
        layer.order.assign(0.0)
        fit(model, examples, examples, batch_size=1, verbose=0)
        orders.append(float(layer.order.value))
    np.testing.assert_array_equal(layer.counts, [3] * 10)
    assert len(set(orders)) == 3


def test_a_second_fit_traces_nothing_and_another_compile_all():
    traces = []

    class Traced(keras.layers.Layer):
        def call(self, inputs):
            traces.append(1)
            return inputs

    model = keras.Sequential([keras.Input((6,)), Traced(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    fit(model, X, Y, verbose=0)
    first = len(traces)
    fit(model, X, Y, batch_size=4, verbose=0)
    assert len(traces) == first
    model.compile(keras.optimizers.Adam(0.1), loss)
    fit(model, X, Y, verbose=0)
    assert len(traces) > first
    assert int(model.optimizer.iterations) == 1


class Types(keras.layers.Layer):
    """Notes the type of its inputs each time that it is traced."""

    def __init__(self, **options):
        super().__init__(**options)
        self.__dict__["seen"] = []  # past Keras, which tracks lists

    def call(self, inputs):
        self.__dict__["seen"].append(inputs.dtype.name)
        return inputs


def noted():
    """A compiled model that was trained once, and the types that its layer has seen since."""
    layer = Types()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), layer, keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, X, Y, verbose=0)
    layer.__dict__["seen"].clear()
    return model, layer.__dict__["seen"]


def test_half_precision_after_a_fit_takes_effect():
    model, seen = noted()
    use_mixed_precision(model)
    fit(model, X, Y, verbose=0)
    assert "bfloat16" in seen


@pytest.mark.parametrize("change", ["optimizer", "metrics", "XLA", "plan"])
def test_what_changes_after_a_fit_is_traced_anew(change):
    model, seen = noted()
    if change == "optimizer":
        model.compile(keras.optimizers.SGD(0.1))  # the loss stays
    elif change == "metrics":
        model.compile(model.optimizer, metrics=["accuracy"])
    elif change == "XLA":
        model.jit_compile = True
    else:
        assert TrainingPlan().apply(model, X[:4]) is model
    found = fit(model, X, Y, verbose=0)
    assert seen
    assert ("accuracy" in found.history) == (change == "metrics")
    counts = [float(one.numpy()) for one in model.metrics_variables if one.shape == ()].count(len(X))
    assert counts == (2 if change == "metrics" else 1)  # examples that the loss, and the accuracy, are the mean of
    assert int(model.optimizer.iterations) == (1 if change == "optimizer" else 2)
    seen.clear()
    fit(model, X, Y, verbose=0)
    assert not seen


def test_another_optimizer_in_place_is_trained_with():
    model, seen = noted()
    model.optimizer = keras.optimizers.SGD(0.1)
    fit(model, X, Y, verbose=0)
    assert seen
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("by_plan", [False, True])
def test_a_fast_optimizer_after_a_fit_takes_effect(by_plan, monkeypatch):
    model, updates, own = noted()[0], [], tf.raw_ops.ResourceApplyAdam

    def update(**given):
        updates.append(1)
        return own(**given)

    monkeypatch.setattr(tf.raw_ops, "ResourceApplyAdam", update)
    if by_plan:
        TrainingPlan(changes=("fast_optimizer",)).apply(model, X[:4])
    else:
        fast_optimizer(model.optimizer)
    fit(model, X, Y, verbose=0)
    assert len(updates) == len(model.trainable_variables)
    assert int(model.optimizer.iterations) == 2


def test_a_plan_says_that_an_optimizer_is_fast_already():
    model = noted()[0]
    fast_optimizer(model.optimizer)
    with pytest.raises(ValueError, match=r"^fast optimizer: the optimizer is fast already$"):
        TrainingPlan(changes=("fast_optimizer",)).apply(model, X[:4])


def test_it_trains_what_was_fused_after_a_fit():
    model = made()
    fit(model, X, Y, verbose=0)
    fuse(model, X, measure=False)
    before = model.layers[1].moving_mean.numpy()
    fit(model, X, Y, verbose=0)
    assert np.abs(before - model.layers[1].moving_mean).max() > 0


def test_it_takes_structures():
    inputs = {name: keras.Input((6,), name=name) for name in ("one", "two")}
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Add()(list(inputs.values()))))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert len(fit(model, {"one": X, "two": X}, Y, epochs=2, verbose=0).history["loss"]) == 2


def test_compiled_by_xla_it_trains_the_same():
    plain, ours = made(), made(jit_compile=True)
    for one in (plain, ours):
        fit(one, X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)


def test_a_model_that_is_gone_leaves_nothing():
    model = made()
    fit(model, X, Y, verbose=0)
    gone = weakref.ref(model)
    del model
    keras.utils.clear_session()
    gc.collect()
    assert gone() is None


class Own(keras.Model):
    def train_step(self, data):
        return {}


def uncompiled():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def with_own_step():
    model = Own()
    model.compile("sgd", "mse")
    return model


def under_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return made()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (uncompiled, "expected a compiled model"),
        (lambda: made(run_eagerly=True), "does not run eagerly"),
        (under_a_strategy, "under no strategy"),
        (with_own_step, "expected Keras's own train_step. Received: that of Own"),
    ],
)
def test_what_it_cannot_train_is_told_in_one_line(build, words):
    with pytest.raises(ValueError, match=rf"^[^\n]*{words}[^\n]*$"):
        fit(build(), X, Y)


def test_examples_that_are_not_as_many_are_told():
    with pytest.raises(ValueError, match=r"^expected as many examples everywhere. Received: 21, 22$"):
        fit(made(), X, Y[:-1])
