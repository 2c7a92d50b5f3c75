"""The nets that are compared, in any backend of Keras; all of them flat: no layer is itself a model."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tfperf.nets import NAMES, get_net

__all__ = ["build", "build_alike", "efficientnet_b0", "mobilenet_v2", "model_of", "resnet50", "settled", "weights_of"]

SEED = 0


def lstm(*, unroll: bool = False) -> keras.Model:
    """An LSTM over 64 token ids, and 10 classes; it ends in logits.

    Args:
        unroll: in place of a loop, the steps one after the other, as they must be to be counted.
    """
    ids = keras.Input((64,), dtype="int32")
    embedded = keras.layers.Embedding(256, 64, name="embedding")(ids)
    return keras.Model(
        ids, keras.layers.Dense(10, name="logits")(keras.layers.LSTM(128, unroll=unroll, name="lstm")(embedded))
    )


def _of_small_images(application: Callable[..., keras.Model]) -> keras.Model:
    return application(weights=None, input_shape=(96, 96, 3), classes=10, classifier_activation=None)


TRAINED: dict[str, Callable[[], keras.Model]] = {
    "mobilenetv2_96": lambda: _of_small_images(keras.applications.MobileNetV2),
    "efficientnetb0_96": lambda: _of_small_images(keras.applications.EfficientNetB0),
    "lstm": lstm,
}
"""Nets of which training alone is compared: those of keras.applications for images of 96 pixels and 10 classes, and one
for sequences."""


def build(name: str) -> keras.Model:
    """The net of this name, with the weights that all are compared with."""
    return mobilenet_v2() if name == "MobileNetV2" else fresh(name)


def fresh(name: str) -> keras.Model:
    """The net of this name, as Keras initializes it."""
    if name in NAMES:
        return get_net(name, seed=SEED)
    keras.utils.set_random_seed(SEED)
    if name in TRAINED:
        return TRAINED[name]()
    return keras.applications.MobileNetV2(weights=None, classifier_activation=None)


def model_of(name: str) -> str:
    """The same net as `tfperf tune` takes it."""
    return name if name in NAMES else f"{__file__}:{mobilenet_v2.__name__}"


def build_alike(name: str, weights: Mapping[str, NDArray[Any]]) -> keras.Model:
    """The net of this name, with the weights of `weights_of`."""
    net = fresh(name)
    for layer in net.layers:
        layer.set_weights([weights[_name(layer, weight)] for weight in layer.weights])
    return net


def mobilenet_v2() -> keras.Model:
    """Keras's own with random weights, settled; it ends in logits."""
    return settled(fresh("MobileNetV2"))


def efficientnet_b0() -> keras.Model:
    """Keras's own with random weights, settled; it ends in logits."""
    keras.utils.set_random_seed(SEED)
    return settled(keras.applications.EfficientNetB0(weights=None, classifier_activation=None), shift=4.0)


def resnet50() -> keras.Model:
    """Keras's own with random weights, settled; it ends in logits."""
    keras.utils.set_random_seed(SEED)
    return settled(keras.applications.ResNet50(weights=None, classifier_activation=None))


def settled(net: keras.Model, shift: float = 2.0) -> keras.Model:
    """The net, its batch normalizations set by random images.

    Trained weights would have to be downloaded. With fresh normalizations, or random statistics near 0 and 1, the
    signal of a deep net fades from layer to layer until all inputs have the same answer, and a check of answers sees
    nothing. Shifts as large as these keep it from growing rounding errors from layer to layer as no trained net does:
    in bfloat16 MobileNetV2 ends at 1 % of the largest answer, and at 10 % with shifts of 0.1. All end in logits, as
    every net of tfperf: the softmax of a net that learnt nothing is nearly the same for every input.
    """
    generator = np.random.default_rng(SEED)
    layers = [layer for layer in net.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in layers:
        gamma, beta, *statistics = layer.get_weights()
        layer.set_weights(
            [generator.uniform(0.8, 1.2, gamma.shape), generator.normal(0, shift, beta.shape), *statistics]
        )
        layer.momentum = 0.0  # one step settles the statistics
    net(generator.standard_normal((8, *net.input_shape[1:])).astype("float32"), training=True)
    for layer in layers:
        layer.momentum = 0.999
    return net


def weights_of(net: keras.Model) -> dict[str, NDArray[Any]]:
    """Layer and kind, as "conv/kernel" -> weight; of a layer within a layer "attention_query/kernel"."""
    return {
        _name(layer, weight): np.asarray(value)
        for layer in net.layers
        for weight, value in zip(layer.weights, layer.get_weights(), strict=True)
    }


def _name(layer: keras.Layer, weight: Any) -> str:
    cells = isinstance(layer, keras.layers.RNN)  # their names are numbered by process
    within = [one.name for one in layer._layers if any(own is weight for own in one.weights) and not cells]
    return f"{'_'.join([layer.name, *within])}/{weight.name}"
