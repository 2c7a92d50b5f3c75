"""Keras, training: `fit` as users have it, on any backend, and with what `tfperf.training` does to it."""

from functools import partial
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.given import Given, Loaded
from benchmarks.peers.nets import build_alike

__all__ = ["load"]

WAYS: dict[str, bool | str] = {"fit": "auto", "tfperf": False, "tfperf, XLA": True, "tfperf, loop by XLA": False}
"""Way -> `jit_compile` of the model. Keras's default is XLA on JAX, and none in TensorFlow on a CPU."""


def load(given: Given) -> Loaded:
    """Make it ready: a call trains for an epoch over all examples, in another order each time, and tells the loss."""
    if given.precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{given.precision}")
    with np.load(given.folder / "weights.npz", allow_pickle=False) as weights:
        net = build_alike(given.net, weights)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(None)  # with the one that made the net, Keras's fit has the same batches in every epoch
    with np.load(given.folder / "examples.npz", allow_pickle=False) as examples:
        inputs, labels = examples["inputs"], examples["labels"]
        batch_size, rate = int(examples["batch_size"]), float(examples["rate"])
    words = f"Keras {keras.__version__} on {keras.backend.backend()}"
    optimizer, train = keras.optimizers.Adam(rate), keras.Model.fit
    if "tfperf" in given.way:
        from tfperf.training import fast_optimizer, fit, fuse

        words = str(fuse(net, inputs[:batch_size])).splitlines()[0]
        train = partial(fit, jit_compile="loop" in given.way)
        fast_optimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss, jit_compile=WAYS[given.way])

    def epoch(_: NDArray[Any]) -> NDArray[Any]:
        return np.array([train(net, inputs, labels, batch_size=batch_size, verbose=0).history["loss"]])

    return Loaded(epoch, lambda number: number, words)
