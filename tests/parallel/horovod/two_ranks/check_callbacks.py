"""Callbacks against numbers computed by hand; models saved, loaded without tfperf, and trained further."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from comparing import (
    assert_same,
    batches,
    check_same_state,
    dataset_of,
    dense_net,
    one_process,
    share,
    start_of_rank_0,
    train_on_batch,
    weights_of,
)

import tfperf.parallel.horovod as hvd

K = keras.optimizers
C = hvd.callbacks

# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


def everywhere(value: Any) -> list[Any]:
    return hvd.allgather_object(value)


def fit(model: keras.Model, callbacks: Any, *, steps: int = 4, epochs: int = 1) -> Any:
    data = dataset_of([share(batch) for batch in batches(steps)])
    return model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks).history


class Rates(keras.callbacks.Callback):
    """The learning rate that each batch was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(self.model.optimizer.learning_rate))


def rates(callback: Any, *, optimizer: Any = None, steps: int = 4, epochs: int = 3) -> list[float]:
    model, seen = dense_net(), Rates()
    model.compile(hvd.DistributedOptimizer(optimizer or K.SGD(0.5)), "mse")
    history = fit(model, [callback, seen], steps=steps, epochs=epochs)
    assert everywhere(seen.seen) == [seen.seen] * 2
    assert history["learning_rate"] == pytest.approx(seen.seen[steps - 1 :: steps])
    return seen.seen


def test_broadcast_without_callbacks() -> None:
    """The default: nothing but the optimizer, and all ranks train from rank 0's start as one process does."""
    model, data, loss = dense_net(), batches(), keras.losses.MeanSquaredError()
    reference = one_process(dense_net, start_of_rank_0(model), K.Adam(0.05), loss, data)
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), loss)
    fit(model, [])
    assert_same([weights_of(model)], reference and reference[-1:])


@pytest.mark.parametrize("root", ["0", "1"])
def test_broadcast_of_a_rank(root: str) -> None:
    model, data, loss = dense_net(), batches(), keras.losses.MeanSquaredError()
    start = hvd.broadcast_object(model.get_weights(), root_rank=int(root))
    reference = one_process(dense_net, start, K.SGD(0.1, momentum=0.9), loss, data)
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1, momentum=0.9)), loss)
    fit(model, [C.BroadcastGlobalVariablesCallback(int(root))])
    assert_same([weights_of(model)], reference and reference[-1:])


def test_broadcast_of_an_optimizer_in_use() -> None:
    """Momenta, counts and rate of rank 0, though each rank trained alone before."""
    model = dense_net()
    plain = K.Adam(0.05 * (1 + hvd.rank()))
    train_on_batch(model, plain, "mse", [share(batch) for batch in batches(1 + hvd.rank())])
    start = hvd.broadcast_object(model.get_weights())
    state = hvd.broadcast_object([v.numpy() for v in plain.variables])
    model.compile(hvd.DistributedOptimizer(plain), "mse")
    fit(model, [C.BroadcastGlobalVariablesCallback()])
    check_same_state(model.optimizer)

    single = dense_net()
    single.set_weights(start)
    optimizer = K.Adam(0.05)
    optimizer.build(single.trainable_variables)
    for variable, value in zip(optimizer.variables, state, strict=True):
        variable.assign(value)
    reference = train_on_batch(single, optimizer, keras.losses.MeanSquaredError(), batches(), run_eagerly=True)
    assert_same([weights_of(model)], reference[-1:])


def test_broadcast_of_statistics_and_seeds() -> None:
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    layers[0].moving_mean.assign(np.full(5, hvd.rank() + 1.0))
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    seen = []

    class AtBegin(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append([np.asarray(v.numpy()) for v in model.variables])

    before = everywhere([v.numpy().tolist() for v in layers[1].variables])
    assert before[0] != before[1]
    fit(model, [C.BroadcastGlobalVariablesCallback(), AtBegin()])
    assert_same(seen)


def test_broadcast_of_a_model_not_built_yet() -> None:
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), "mse")
    fit(model, C.default())
    assert_same([weights_of(model)])


def test_warm_up() -> None:
    """From half the rate to the rate, a line through 2 epochs of 4 batches; then it stays."""
    expected = [0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8] + [0.8] * 4
    assert rates(C.LearningRateWarmupCallback(0.8, warmup_epochs=2)) == pytest.approx(expected)


def test_warm_up_of_a_given_length() -> None:
    callback = C.LearningRateWarmupCallback(0.8, warmup_epochs=1, steps_per_epoch=4)
    assert rates(callback, epochs=2) == pytest.approx([0.5, 0.6, 0.7, 0.8] + [0.8] * 4)


def test_warm_up_arrives_where_several_steps_are_one_execution() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.5)), "mse", steps_per_execution=4)
    fit(model, [C.LearningRateWarmupCallback(0.8, warmup_epochs=2)], steps=4, epochs=3)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.8)


def test_warm_up_says_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    rates(C.LearningRateWarmupCallback(0.8, warmup_epochs=1, verbose=1), epochs=2)
    assert everywhere(capsys.readouterr().out.strip()) == ["epoch 1: warm-up of the learning rate ended at 0.8", ""]


SCHEDULES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "decay": ({"multiplier": 0.5, "start_epoch": 1}, [0.5] * 2 + [0.8] * 2 + [0.4] * 2 + [0.2] * 2),
    "ends": ({"multiplier": 0.5, "start_epoch": 0, "end_epoch": 2}, [0.8] * 2 + [0.4] * 2 + [0.4] * 4),
    "steps": ({"multiplier": lambda epoch: 1 / (epoch + 1)}, [0.8] * 2 + [0.4] * 2 + [0.8 / 3] * 2 + [0.2] * 2),
    "smooth": (
        {"multiplier": lambda epoch: 1 + epoch, "staircase": False, "end_epoch": 3},
        [0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 2.8, 2.8],
    ),
}


@pytest.mark.parametrize("case", ["decay", "ends", "steps", "smooth"])
def test_schedule(case: str) -> None:
    """Four epochs of two batches; compiled with 0.5, scheduled from 0.8."""
    options, expected = SCHEDULES[case]
    assert rates(C.LearningRateScheduleCallback(0.8, **options), steps=2, epochs=4) == pytest.approx(expected)


def test_warm_up_on_ranks_with_other_numbers_of_batches() -> None:
    """The rank with the fewest counts, to which the guard cuts the others' epochs."""
    model, seen = dense_net(), Rates()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.5)), "mse")
    callbacks = [*C.default(), C.LearningRateWarmupCallback(0.8, warmup_epochs=2), seen]
    with pytest.warns(UserWarning, match="rank 1 had 2"):
        fit(model, callbacks, steps=3 - hvd.rank(), epochs=3)
    assert everywhere(seen.seen) == [pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8, 0.8])] * 2


def test_a_smooth_schedule_needs_the_length_of_an_epoch() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    data = dataset_of([share(batch) for batch in batches(2)]).filter(lambda *_: True)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(data, verbose=0, shuffle=False, callbacks=[C.LearningRateWarmupCallback(0.8)])


@pytest.mark.parametrize("correction", ["corrected", "plain"])
def test_momentum_correction(correction: str) -> None:
    """One weight with gradient 1 under momentum 1/2, rates 0.1, 0.2, 0.05: the velocities by hand."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1, momentum=0.5)), lambda y, predicted: predicted)
    factors = [1.0, 2.0, 0.5]
    schedule = C.LearningRateScheduleCallback(
        0.1, lambda epoch: factors[int(epoch)], momentum_correction=correction == "corrected"
    )
    seen = []

    class Weight(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(float(model.layers[0].kernel.numpy()[0, 0]))

    one = np.ones((1, 1), "float32")
    model.fit(one, one, epochs=3, verbose=0, callbacks=[schedule, Weight()])
    # velocity = velocity * (new rate / old rate, if corrected) / 2 - rate
    expected = [-0.1, -0.4, -0.4875] if correction == "corrected" else [-0.1, -0.35, -0.525]
    assert seen == pytest.approx(expected)
    assert everywhere(seen) == [seen] * 2


def test_the_rate_of_adam_has_no_velocity() -> None:
    """Adam's momenta hold no rate: they are what they are without the callback."""
    models = [dense_net(), dense_net()]
    models[1].set_weights(start_of_rank_0(models[0]))
    models[0].set_weights(models[1].get_weights())
    for model, correction in zip(models, (True, False), strict=True):
        model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), "mse")
        fit(model, [C.LearningRateScheduleCallback(0.05, 0.5, momentum_correction=correction)], epochs=3)
    assert_same([weights_of(models[0])], [weights_of(models[1])], tolerance=0)


def test_metric_average() -> None:
    """The mean of what the ranks have: of the loss, that of one process; of a metric one rank has, its own."""
    model, data, loss = dense_net(), batches(), keras.losses.MeanSquaredError()
    single = dense_net()
    single.set_weights(start_of_rank_0(model))
    single.compile(K.SGD(0.1), loss)
    expected = single.fit(dataset_of(data), shuffle=False, verbose=0).history["loss"]

    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["own"] = hvd.rank() + 1.0
            if hvd.rank() == 1:
                logs["lonely"] = 7.0

    after = []

    class After(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            after.append(dict(logs))

    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), loss)
    history = fit(model, [Logs(), C.MetricAverageCallback(), After()])
    assert after[0]["own"] == 1.5
    assert everywhere(after[0].get("lonely")) == [None, 7.0]
    losses = everywhere(history["loss"])
    assert losses[0] == losses[1]
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)


def test_metric_average_of_each_class() -> None:
    """A metric with a value for each class: the mean of each."""
    model, own = dense_net(), []
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse", metrics=[keras.metrics.F1Score(average=None)])

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            own.append(np.asarray(logs["f1_score"]).tolist())

    data = dataset_of([share((x, np.eye(3, dtype="float32")[y.argmax(-1)])) for x, y in batches()])
    history = model.fit(data, verbose=0, shuffle=False, callbacks=[Own(), C.MetricAverageCallback()]).history
    (first,), (second,) = everywhere(own)
    assert first != second
    assert everywhere(history["f1_score"][0].tolist()) == [pytest.approx(np.mean([first, second], axis=0).tolist())] * 2
    assert [type(loss) for loss in history["loss"]] == [float]


def test_metric_average_of_validation() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse", metrics=["mae"])
    data = dataset_of([share(batch) for batch in batches()])
    history = model.fit(data, validation_data=data, epochs=2, shuffle=False, verbose=0, callbacks=C.default()).history
    assert sorted(history) == ["loss", "mae", "val_loss", "val_mae"]
    assert everywhere(history) == [history] * 2


def test_early_stopping_on_averaged_metrics() -> None:
    """All ranks stop at the same epoch, as their averages are the same."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.0)), "mse")
    stop = keras.callbacks.EarlyStopping("loss", patience=1)
    history = fit(model, [*C.default(), stop], epochs=5)
    assert everywhere(len(history["loss"])) == [2, 2]


def test_a_checkpoint_of_rank_0_alone(folder: Path) -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), "mse")
    path = folder / f"of_rank_{hvd.rank()}_{{epoch}}.keras"
    fit(model, [*C.default(), C.CheckpointCallback(str(path))], epochs=2)
    everywhere(None)  # both have saved
    assert sorted(file.name for file in folder.iterdir()) == ["of_rank_0_1.keras", "of_rank_0_2.keras"]
    loaded = hvd.load_model(folder / "of_rank_0_2.keras")
    assert_same([weights_of(loaded)], [weights_of(model)], tolerance=0)


def test_a_checkpoint_every_other_batch_of_the_best(folder: Path) -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.0)), "mse")
    every = C.CheckpointCallback(str(folder / "batch_{batch}.weights.h5"), save_freq=2, save_weights_only=True)
    best = C.CheckpointCallback(str(folder / "best_{epoch}.keras"), monitor="loss", save_best_only=True)
    fit(model, [*C.default(), every, best], epochs=2)
    everywhere(None)
    assert sorted(file.name for file in folder.iterdir()) == [
        "batch_2.weights.h5",
        "batch_4.weights.h5",
        "best_1.keras",
    ]


FRESH = """
    import json, sys
    sys.modules.update({"horovod": None, "tfperf": None})  # neither can be imported
    import keras, numpy as np
    data = np.load(sys.argv[1])
    told = []
    for saved, out in zip(sys.argv[2::2], sys.argv[3::2]):
        model = keras.models.load_model(saved)
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        assert type(optimizer) is keras.optimizers.Adam, type(optimizer)
        told.append([int(optimizer.iterations), optimizer.get_config()])
        model.train_on_batch(data["x"], data["y"])
        np.savez(out, *[v.numpy() for v in model.trainable_variables])
    print(json.dumps(told))
"""


def trained_for_two_batches(kind: str) -> keras.Model:
    optimizer = hvd.DistributedOptimizer(K.Adam(0.05, gradient_accumulation_steps=2 if kind == "accumulates" else None))
    model = dense_net()
    outer = K.LossScaleOptimizer(optimizer) if kind == "loss_scale" else optimizer
    train_on_batch(model, outer, "mse", [share(batch) for batch in batches(2)])
    return model


def train_in_a_fresh_python(models: dict[str, keras.Model], folder: Path, x: Any, y: Any) -> Any:
    """Save models, and train each by one batch where neither Horovod nor tfperf can be imported; what that tells."""
    np.savez(folder / "data.npz", x=x, y=y)
    for kind, model in models.items():
        model.save(folder / f"{kind}.keras")
    files = [str(folder / name) for kind in models for name in (f"{kind}.keras", f"{kind}.npz")]
    command = [sys.executable, "-c", textwrap.dedent(FRESH), str(folder / "data.npz"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr


def test_saved_and_trained_further(folder: Path) -> None:
    """A saved model is Keras's own: a fresh Python without Horovod trains it as `hvd.load_model` does on all ranks."""
    models = {kind: trained_for_two_batches(kind) for kind in ("plain", "accumulates", "loss_scale")}
    *_, (x, y) = batches(3)
    told = train_in_a_fresh_python(models, folder, x, y) if hvd.rank() == 0 else None
    inner = [getattr(model.optimizer, "inner_optimizer", model.optimizer) for model in models.values()]
    assert hvd.broadcast_object(told) == [
        [2, inner[0].get_config()],
        [1, inner[1].get_config()],
        [2, inner[2].get_config()],
    ]

    for kind, model in models.items():
        with np.load(folder / f"{kind}.npz") as file:
            reference = [file[name] for name in file.files]
        loaded = hvd.load_model(folder / f"{kind}.keras")
        state = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
        kept = [np.array_equal(a.numpy(), b.numpy()) for a, b in state]
        loaded.train_on_batch(*share((x, y)))
        assert_same([weights_of(loaded)], [reference])
        assert everywhere(all(kept)) == [True, True], kind
        moved = not np.array_equal(weights_of(model)[0], weights_of(loaded)[0])
        assert everywhere(moved) == [kind != "accumulates"] * 2


def test_load_model_takes_options(folder: Path) -> None:
    model = dense_net()
    train_on_batch(model, K.SGD(0.1), "mse", [share(batches(1)[0])])
    if hvd.rank() == 0:
        model.save(folder / "plain.keras")
    everywhere(None)
    loaded = hvd.load_model(str(folder / "plain.keras"), op=hvd.Sum, name="from_file")
    assert loaded.optimizer.reductions == 0
    loaded.train_on_batch(*share(batches(1)[0]))
    assert loaded.optimizer.reductions == 1
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.load_model(folder / "plain.keras", op=hvd.Sum, gradient_predivide_factor=2.0)


def test_load_model_without_an_optimizer(folder: Path) -> None:
    if hvd.rank() == 0:
        dense_net().save(folder / "bare.keras")
    everywhere(None)
    with pytest.raises(ValueError, match="optimizer is missing"):
        hvd.load_model(folder / "bare.keras")


def test_weights_of_a_distributed_model(folder: Path) -> None:
    """`save_weights` with the optimizer of a distributed model is read by a plain one."""
    model = dense_net()
    train_on_batch(model, hvd.DistributedOptimizer(K.Adam(0.05)), "mse", [share(batch) for batch in batches()])
    path = folder / f"{hvd.rank()}.weights.h5"
    model.save_weights(path)
    plain = dense_net()
    plain.compile(K.Adam(0.05), "mse")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(path)
    same = [np.array_equal(a, b) for a, b in zip(weights_of(plain), weights_of(model), strict=True)]
    state = zip(plain.optimizer.variables, model.optimizer.variables, strict=True)
    same += [np.array_equal(a.numpy(), b.numpy()) for a, b in state]
    assert everywhere(all(same)) == [True, True]


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lion", "Ftrl", "Nadam", "Adafactor", "Lamb"])
def test_config_is_the_plain_one(name: str) -> None:
    """Serialised, a distributed optimizer is Keras's: class, public module and config."""
    kind = getattr(K, name)
    plain = kind(0.25, clipnorm=0.5, name="mine")
    optimizer = hvd.DistributedOptimizer(kind(0.25, clipnorm=0.5, name="mine"))
    theirs = K.serialize(optimizer)
    assert theirs | {"registered_name": None} == K.serialize(plain)
    assert isinstance(optimizer, kind)
    # Keras 3.15 reads no Lamb, its own either
    assert type(K.deserialize(theirs)) is type(K.deserialize(K.serialize(plain)))
