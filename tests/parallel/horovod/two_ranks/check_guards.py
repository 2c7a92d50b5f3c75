"""Ranks that are not doing the same: nothing hangs, and the odd rank is named on all of them, or all go on as one."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import assert_same, batches, dataset_of, dense_net, share, start_of_rank_0, weights_of

import tfperf.parallel.horovod as hvd
from tfperf.errors import HorovodError
from tfperf.parallel.horovod import stalls

K = keras.optimizers

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, of data of unknown length


def compiled(optimizer: Any = None, build: Any = dense_net, **options: Any) -> keras.Model:
    model = build()
    start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(optimizer or K.Adam(0.05), **options), "mse")
    return model


def data_of(kind: str, steps: int) -> Any:
    """So many of this rank's batches, in one of the forms that fit takes."""
    data = [share(batch) for batch in batches(steps)]
    if kind == "known":
        return dataset_of(data)
    if kind == "unknown":
        return dataset_of(data).filter(lambda *_: True)

    def generator() -> Iterator[Any]:
        yield from data

    return generator()


def words_of(model: keras.Model, data: Any, **options: Any) -> str:
    """The words of the HorovodError that `fit` raises, or none."""
    try:
        model.fit(data, shuffle=False, verbose=0, **options)
    except HorovodError as error:
        return str(error)
    return ""


def fit(model: keras.Model, kind: str, *, short: int, epochs: int = 1, callbacks: Any = ()) -> str:
    """Train with 4 batches, 3 on rank `short`; the words of the HorovodError, or none."""
    return words_of(model, data_of(kind, 3 if hvd.rank() == short else 4), epochs=epochs, callbacks=list(callbacks))


def everywhere(value: Any) -> list[Any]:
    return hvd.allgather_object(value)


@pytest.mark.parametrize("epochs", ["1", "3"])
@pytest.mark.parametrize("short", ["0", "1"])
@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_unequal_batches_are_equalised(kind: str, short: str, epochs: str) -> None:
    model = compiled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = fit(model, kind, short=int(short), epochs=int(epochs), callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    told = [str(warning.message) for warning in caught if "as many batches" in str(warning.message)]
    assert everywhere(len(told)) == [1, 1]
    assert f"rank {short} had 3" in told[0]
    assert "up to 4" in told[0]
    steps = 3 * int(epochs) + (kind == "unknown")  # of unknown length, the first epoch is as long as it is
    assert everywhere(int(model.optimizer.iterations)) == [steps, steps]
    assert_same([model.get_weights() + [v.numpy() for v in model.optimizer.variables]])


@pytest.mark.parametrize("validated", ["with validation", "without"])
def test_a_rank_that_has_trained_is_not_taken_for_waiting(validated: str) -> None:
    """A step that finds no more data is no exchange that goes on, which after some minutes would end the rank."""
    model, waiting = compiled(), []
    note = keras.callbacks.LambdaCallback(on_test_end=lambda logs: waiting.append(waits()))
    data = data_of("unknown", 4)
    options = {"validation_data": data_of("unknown", 2)} if validated == "with validation" else {}
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[*hvd.callbacks.default(), note], **options)
    assert [*waiting, waits()] == [False] * (2 * len(options) + 1)


def test_a_last_step_without_data_begins_no_exchange() -> None:
    """Without the guard too: a long validation after it is no waiting."""
    model, waiting = compiled(), []
    note = keras.callbacks.LambdaCallback(on_test_begin=lambda logs: waiting.append(waits()))
    options = {"validation_data": data_of("unknown", 2), "callbacks": [note]}
    model.fit(data_of("unknown", 4), epochs=2, verbose=0, shuffle=False, **options)
    assert everywhere(waiting) == [[False, False]] * 2


def waits() -> bool:
    return any(exchanges.waiting() is not None for exchanges in stalls._all_exchanges)


@pytest.mark.parametrize("short", ["0", "1"])
def test_a_generator_is_equalised(short: str) -> None:
    model = compiled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = fit(model, "generator", short=int(short), callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    assert any(f"rank {short} had 3" in str(warning.message) for warning in caught)
    assert_same([weights_of(model)])


@pytest.mark.parametrize("kind", ["known", "unknown", "generator"])
def test_unequal_batches_are_refused(kind: str) -> None:
    words = fit(compiled(), kind, short=1, callbacks=hvd.callbacks.default(unequal="refuse"))
    told = everywhere(words)
    assert told[0] == told[1]
    assert "rank 1 had 3, others up to 4" in words


@pytest.mark.parametrize("epochs", ["1", "3"])
@pytest.mark.parametrize("kind", ["known", "unknown", "generator"])
def test_unequal_batches_without_callbacks(kind: str, epochs: str) -> None:
    """The end of fit tells, at the latest."""
    if kind == "generator" and epochs == "3":
        steps = 9 if hvd.rank() == 1 else 12
        words = words_of(compiled(), data_of("generator", steps), epochs=3, steps_per_epoch=steps // 3)
    else:
        words = fit(compiled(), kind, short=1, epochs=int(epochs))
    told = everywhere(words)
    assert told[0] == told[1]
    assert f"expected {4 * int(epochs)} steps on every rank, rank 1 took {3 * int(epochs)}" in words


@pytest.mark.parametrize("kind", ["known", "unknown"])
@pytest.mark.parametrize("optimizer", ["accumulates", "sparse", "loss_scale", "fp16", "groups", "predivide"])
def test_unequal_batches_of_other_optimizers(optimizer: str, kind: str) -> None:
    """Whatever is exchanged, a rank that waits takes part in it. Sparse gradients of unknown length: test_guard.py."""
    options: dict[str, Any] = {
        "accumulates": {"optimizer": K.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)},
        "sparse": {"build": embedding_net, "sparse_as_dense": kind == "unknown"},
        "loss_scale": {"optimizer": K.LossScaleOptimizer(K.Adam(0.05))},
        "fp16": {"compression": hvd.Compression.fp16},
        "groups": {"groups": 2},
        "predivide": {"gradient_predivide_factor": 2.0},
    }[optimizer]
    model = compiled(**options)
    data = data_of(kind, 3 if hvd.rank() == 1 else 4)
    if optimizer == "sparse":
        data = data.map(lambda x, y: (tf.cast(x[:, :2] > 0, tf.int32), tf.stack([y, -y], axis=1)))
    with pytest.warns(UserWarning, match="rank 1 had 3"):
        words = words_of(model, data, epochs=2, callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    assert_same([weights_of(model)])


def embedding_net() -> keras.Model:
    return keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3)])


class Meddler(keras.callbacks.Callback):
    """Changes a weight of rank 1 by hand, after its second batch."""

    def __init__(self, choose: Any) -> None:
        super().__init__()
        self.choose, self.batches = choose, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches == 2 and hvd.rank() == 1:
            variable = self.choose(self.model)
            variable.assign(variable + 1e-6)


def meddled(callbacks: Any, choose: Any, **options: Any) -> tuple[str, Meddler]:
    meddler = Meddler(choose)
    words = words_of(compiled(**options), data_of("known", 4), epochs=3, callbacks=[meddler, *callbacks])
    told = everywhere(words)
    assert told[0] == told[1]
    return words, meddler


def kernel(model: keras.Model) -> Any:
    return model.layers[1].kernel


def test_other_weights_are_told_at_the_next_comparison() -> None:
    words, meddler = meddled([hvd.callbacks.GuardCallback(every=2)], kernel)
    assert "expected equal weights on all 2 ranks, rank 1 differs in" in words
    assert "dense_1/kernel" in words
    assert meddler.batches == 2


def test_other_weights_are_told_at_the_end_of_the_epoch() -> None:
    words, meddler = meddled(hvd.callbacks.default(), kernel)
    assert "rank 1 differs" in words
    assert meddler.batches == 4


def test_other_weights_are_told_at_the_end_of_fit() -> None:
    words, meddler = meddled([], kernel)
    assert "rank 1 differs" in words
    assert meddler.batches == 12


def test_another_optimizer_state_is_told() -> None:
    words, _ = meddled([hvd.callbacks.GuardCallback(every=1)], lambda model: model.optimizer.variables[-1])
    assert "rank 1 differs" in words


def test_other_frozen_weights_are_told() -> None:
    """Without the broadcast, frozen weights are what each rank was seeded with."""
    model = dense_net()
    model.layers[0].trainable = False
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    with pytest.raises(HorovodError, match="rank 1 differs in 'sequential/dense/kernel'"):
        model.fit(data_of("known", 4), verbose=0, callbacks=[hvd.callbacks.GuardCallback()], shuffle=False)


def test_gradients_on_their_way_to_an_update_are_not_compared() -> None:
    """Each rank has its own until they are exchanged; with 4 batches and updates of 3, also at the end of an epoch."""
    model = compiled(K.Adam(0.05, gradient_accumulation_steps=3))
    words = words_of(model, data_of("known", 4), epochs=2, callbacks=hvd.callbacks.default(check_every=1))
    assert everywhere(words) == ["", ""]
    assert model.optimizer.reductions == 2


def test_local_weights_are_not_compared() -> None:
    model = dense_net()
    start_of_rank_0(model)
    optimizer = hvd.DistributedOptimizer(K.Adam(0.05), local_layers=model.layers[0])
    model.compile(optimizer, "mse")
    local = hvd.callbacks.BroadcastGlobalVariablesCallback(0, model.layers[0].variables)
    guard = hvd.callbacks.GuardCallback(every=1)
    words = words_of(model, data_of("known", 4), epochs=2, callbacks=[local, guard])
    assert everywhere(words) == ["", ""]
    assert_same([[v.numpy() for v in model.layers[1].variables]])
    kernels = everywhere(model.layers[0].kernel.numpy().tolist())
    assert kernels[0] != kernels[1]


@pytest.mark.parametrize("optimizer", ["Adam", "Adafactor", "Muon"])
def test_local_layers_stay_those_of_each_rank_from_one_fit_to_the_next(optimizer: str) -> None:
    """Their weights, statistics and momenta; those of shared layers become those of rank 0."""
    local = [keras.layers.Dense(4, use_bias=False), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((5,)), *local, keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(getattr(K, optimizer)(0.05), local_layers=local), "mse")

    def state() -> list[Any]:
        """The local layers' variables, and what the optimizer keeps of the first of them."""
        lists = [getattr(model.optimizer, name, []) for name in ("_momentums", "momentums", "_velocities", "_r", "_c")]
        kept = [states[0] for states in lists if len(states)]
        return [v.numpy().tolist() for v in [*local[0].variables, *local[1].variables, *kept]]

    seen = []

    class AtBegin(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append(state())

    for _ in range(2):
        seen.append(state())
        words = words_of(model, data_of("known", 4), epochs=2, callbacks=[*hvd.callbacks.default(), AtBegin()])
        assert everywhere(words) == ["", ""]
    first, begun, second, begun_again = seen
    assert everywhere([first == begun, second == begun_again]) == [[True, True]] * 2
    alike = [mine == other for mine, other in zip(*everywhere(second), strict=True)]
    assert len(alike) > 5
    assert not any(alike)
    assert_same([[v.numpy() for v in model.layers[2].variables]])


def test_a_local_layer_that_is_built_later_stays_on_its_rank() -> None:
    local = keras.layers.Dense(4)
    model = keras.Sequential([local, keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05), local_layers=local), "mse")
    words = words_of(model, data_of("known", 4), epochs=2, callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    kernels = everywhere(local.kernel.numpy().tolist())
    assert kernels[0] != kernels[1]
    assert_same([weights_of(model.layers[1])])


@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_unequal_batches_with_several_steps_in_one_execution(kind: str) -> None:
    """5 and 6 batches, 4 at a time: Keras counts 8 on both ranks."""
    model = compiled()
    model.compile(model.optimizer, "mse", steps_per_execution=4)
    with pytest.warns(UserWarning, match="rank 1 had 5, others up to 6"):
        words = words_of(model, data_of(kind, 6 - hvd.rank()), epochs=2, callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    assert_same([weights_of(model)])


@pytest.mark.parametrize("optimizer", ["accumulates", "averages", "scheduled"])
def test_a_step_that_finds_no_data_changes_nothing(optimizer: str) -> None:
    """TensorFlow does of it what waits for no gradient."""
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    make = {
        "accumulates": lambda: K.SGD(0.1, gradient_accumulation_steps=2),
        "averages": lambda: K.SGD(0.1, use_ema=True, ema_momentum=0.5),
        "scheduled": lambda: K.SGD(decay),
    }[optimizer]
    found = []
    for kind in ("known", "unknown"):
        keras.utils.set_random_seed(0)
        model = dense_net()
        model.compile(hvd.DistributedOptimizer(make()), "mse")
        assert words_of(model, data_of(kind, 3), epochs=2) == ""
        found.append([int(model.optimizer._iterations), model.optimizer.reductions, *weights_of(model)])
    for known, unknown in zip(*found, strict=True):
        np.testing.assert_array_equal(known, unknown)


def test_statistics_in_bfloat16_are_averaged() -> None:
    keras.config.set_dtype_policy("bfloat16")
    model = keras.Sequential([keras.Input((5,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(K.SGD(0.01)), "mse")
    words = words_of(model, data_of("known", 4), callbacks=hvd.callbacks.default())
    assert everywhere(words) == ["", ""]
    assert_same([[np.asarray(v.numpy(), "float32") for v in model.layers[0].non_trainable_variables]])


def test_an_optimizer_of_several_is_refused() -> None:
    optimizer = K.MultiOptimizer([{"optimizer": K.SGD(0.1), "filter": "dense"}])
    with pytest.raises(TypeError, match="MultiOptimizer, which applies its own"):
        hvd.DistributedOptimizer(optimizer)


def test_an_optimizer_that_is_not_distributed_is_told() -> None:
    model = dense_net()
    model.compile(K.SGD(0.1), "mse")
    with pytest.raises(HorovodError, match="expected a distributed optimizer"):
        model.fit(data_of("known", 4), verbose=0, callbacks=[hvd.callbacks.GuardCallback()], shuffle=False)


def test_another_model_on_a_rank_is_told() -> None:
    model = keras.Sequential([keras.Input((5,)), *(keras.layers.Dense(3) for _ in range(1 + hvd.rank()))])
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    with pytest.raises(HorovodError, match=r"same model on every rank, ranks have \[\d+, \d+\] variables"):
        model.fit(data_of("known", 4), verbose=0, callbacks=hvd.callbacks.default(), shuffle=False)


def test_check_equal_and_digest() -> None:
    model = dense_net()
    digests = everywhere(hvd.weights_digest(model))
    assert digests[0] != digests[1]
    with pytest.raises(HorovodError, match="expected equal start on all 2 ranks, rank 1 differs in 'sequential/dense"):
        hvd.check_equal(model, "start")
    hvd.broadcast_variables(model.variables, root_rank=1)
    digests = everywhere(hvd.weights_digest(model))
    assert digests[0] == digests[1]
    hvd.check_equal(model)
    assert len(digests[0]) == 16


@pytest.mark.parametrize("root", ["0", "1"])
def test_broadcast_variables(root: str) -> None:
    """Keras's and TensorFlow's variables, of any type and shape, bit by bit."""
    rank = hvd.rank()
    values = [
        keras.Variable(np.full((2, 3), rank + 0.5, "float32")),
        keras.Variable(np.array(rank, "int64"), dtype="int64", trainable=False),
        keras.Variable(np.array([1.5 + rank, -0.0]), dtype="bfloat16"),
        tf.Variable([rank == 1, False]),
        tf.Variable(np.zeros((0, 4), "float16")),
        tf.Variable(math.nan if rank else math.inf),
        tf.Variable(tf.constant([3 + rank], tf.uint8)),
    ]
    hvd.broadcast_variables(values, root_rank=int(root))
    told = everywhere([np.asarray(v.numpy()).tobytes() for v in values])
    assert told[0] == told[1]
    assert float(values[0].numpy()[0, 0]) == int(root) + 0.5
    assert int(values[1].numpy()) == int(root)
    assert math.isnan(float(values[5].numpy())) == (root == "1")


@pytest.mark.parametrize("kind", ["known", "unknown", "batches", "arrays", "dictionary"])
def test_shard(kind: str) -> None:
    """Nine examples: four for each rank, every second one, none twice; the last one is left out."""
    numbers = np.arange(9)
    if kind == "known":
        mine = [int(x) for x in hvd.shard(tf.data.Dataset.from_tensor_slices(numbers))]
    elif kind == "unknown":
        mine = [int(x) for x in hvd.shard(tf.data.Dataset.from_tensor_slices(numbers).filter(lambda x: x >= 0))]
    elif kind == "batches":
        dataset = hvd.shard(tf.data.Dataset.from_tensor_slices(numbers)).batch(3)
        assert int(dataset.cardinality()) == 2
        mine = [int(x) for batch in dataset for x in batch]
    elif kind == "arrays":
        mine, same = hvd.shard((numbers, numbers * 10))
        assert (same == mine * 10).all()
        mine = mine.tolist()
    else:
        mine = hvd.shard({"x": numbers})["x"].tolist()
    assert everywhere(mine) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_shard_of_an_endless_dataset() -> None:
    endless = hvd.shard(tf.data.Dataset.range(4).repeat())
    assert everywhere([int(x) for x in endless.take(3)]) == [[0, 2, 0], [1, 3, 1]]


def test_fit_on_shards() -> None:
    x, y = (np.concatenate(part) for part in zip(*batches(3), strict=True))
    model = compiled()
    data = hvd.shard(tf.data.Dataset.from_tensor_slices((x[:-1], y[:-1])))
    model.fit(data.batch(4), verbose=0, callbacks=hvd.callbacks.default(unequal="refuse"), shuffle=False)
    assert everywhere(int(model.optimizer.iterations)) == [3, 3]


@pytest.mark.parametrize("short", ["0", "1"])
def test_equal_batches(short: str) -> None:
    """A loop of one's own ends on all ranks with the first one that runs out, which is named."""
    mine = 3 if hvd.rank() == int(short) else 5
    seen = []
    loop = (int(hvd.allreduce(tf.constant(batch), op=hvd.Sum)) for batch in hvd.equal_batches(iter(range(mine))))
    with pytest.warns(UserWarning, match=f"rank {short} ran out"):
        seen.extend(loop)
    assert everywhere(seen) == [[0, 2, 4]] * 2


def test_equal_batches_of_as_many() -> None:
    assert everywhere(list(hvd.equal_batches([5, 6]))) == [[5, 6]] * 2
    assert everywhere(list(hvd.equal_batches([]))) == [[]] * 2


def test_verbose() -> None:
    assert everywhere(hvd.verbose(2)) == [2, 0]


def test_unequal_batches_with_a_comparison_each_batch() -> None:
    """The comparison of a rank that still has batches meets a rank that waits at the end of the epoch."""
    model = compiled()
    with pytest.warns(UserWarning, match="rank 1 had 3"):
        words = fit(model, "unknown", short=1, callbacks=hvd.callbacks.default(check_every=1))
    assert everywhere(words) == ["", ""]
    assert_same([weights_of(model)])


def test_unequal_epochs() -> None:
    """One epoch on rank 1, two on rank 0: told on both, with the rank."""
    epochs = 1 if hvd.rank() == 1 else 2
    words = words_of(compiled(), data_of("known", 4), epochs=epochs, callbacks=hvd.callbacks.default())
    told = everywhere(words)
    assert told[0] == told[1]
    assert "rank 1 at the end of training" in words


@pytest.mark.parametrize("callbacks", ["default", "none"])
def test_unequal_batches_in_a_later_epoch(callbacks: str) -> None:
    """The data have an unknown length, and are shorter on rank 1 in the second of three epochs only."""
    model, epochs = compiled(), iter((4, 3 if hvd.rank() == 1 else 4, 4))
    data = [share(batch) for batch in batches(4)]
    kinds = (tf.TensorSpec((4, 5)), tf.TensorSpec((4, 3)))
    dataset = tf.data.Dataset.from_generator(lambda: iter(data[: next(epochs)]), output_signature=kinds)
    chosen = hvd.callbacks.default() if callbacks == "default" else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = words_of(model, dataset, epochs=3, callbacks=chosen)
    told = everywhere(words)
    assert told[0] == told[1]
    if callbacks == "none":
        assert "expected 12 steps on every rank, rank 1 took 11" in words
        return
    assert words == ""
    assert any("rank 1 had 3" in str(warning.message) for warning in caught)
    assert_same([weights_of(model)])
    assert everywhere(int(model.optimizer.iterations)) == [11, 11]  # 4, then 4 with rank 1 waiting, then 3


def test_unequal_batches_in_one_fit_after_another() -> None:
    model = compiled()
    told = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            words = fit(model, "unknown", short=1, callbacks=hvd.callbacks.default())
        told.append([words, sum("rank 1 had 3" in str(warning.message) for warning in caught)])
    assert everywhere(told) == [[["", 1]] * 3] * 2
    assert_same([weights_of(model)])
