"""Fused layers and a fast optimizer on ranks: equal weights after every step, and those of Keras's own on ranks."""

from typing import Any

import keras
import numpy as np
import pytest
from comparing import Batch, assert_moved, assert_same, check_same_state, share, start_of_rank_0, train_on_batch

import tfperf.parallel.horovod as hvd
from tfperf.training import fast_optimizer, fuse

K = keras.optimizers
L = keras.layers

STEPS = 6
OPTIMIZERS = {
    "adamw_global_clipnorm": lambda: K.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "momentum": lambda: K.SGD(0.05, momentum=0.9, nesterov=True),
}


def convolutional_net() -> keras.Model:
    """(rows, 8, 8, 3) -> (rows, 3). No bias before a batch normalization: its gradient is rounding alone."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(),
            L.Conv2D(4, 3, 2, bias_initializer="random_normal"),
            L.GlobalAveragePooling2D(),
            L.Dense(3),
        ]
    )


def images() -> list[Batch]:
    """Whole batches, the same on every rank: x (8, 8, 8, 3), y (8, 3), float32."""
    rng = np.random.default_rng(7)
    return [
        (rng.normal(size=(8, 8, 8, 3)).astype("float32"), rng.normal(size=(8, 3)).astype("float32"))
        for _ in range(STEPS)
    ]


@pytest.mark.parametrize("optimizer", ["adamw_global_clipnorm", "momentum"])
@pytest.mark.parametrize("order", ["fast_first", "distributed_first"])
def test_fused_layers_and_a_fast_optimizer(order: str, optimizer: str) -> None:
    fused, plain = convolutional_net(), convolutional_net()
    start = start_of_rank_0(fused)
    plain.set_weights(start)
    fusion = fuse(fused, batch_size=4, measure=False)
    assert [swap.form for swap in fusion.swaps] == ["SwappedConv2D", "FusedBatchNormalization", "SwappedConv2D"]
    assert all(swap.kept for swap in fusion.swaps)
    data = [share(batch) for batch in images()]
    reference = train_on_batch(plain, hvd.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse", data)
    assert_same(reference)
    history = train_on_batch(fused, distributed(OPTIMIZERS[optimizer](), order), "mse", data)
    assert_moved(start, fused)
    assert_same(history, reference, tolerance=1e-4)
    check_same_state(fused.optimizer)
    assert fused.optimizer.reductions == STEPS


def distributed(optimizer: Any, order: str) -> Any:
    """A fast and distributed optimizer, made so in this order."""
    if order == "fast_first":
        optimizer = hvd.DistributedOptimizer(fast_optimizer(optimizer))
    else:
        optimizer = fast_optimizer(hvd.DistributedOptimizer(optimizer))
    assert any(kind.__name__ in ("_FastAdam", "_FastSGD") for kind in type(optimizer).__mro__)
    return optimizer
