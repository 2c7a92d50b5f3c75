"""ResNet-18 for small images: a 3x3 first layer of stride 1, and no max pooling."""

from typing import Any

import keras

from tfperf.nets.arguments import image_shape, whole_number

__all__ = ["build"]

STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


def build(input_shape: tuple[int, int, int] = (28, 28, 1), num_classes: int = 10) -> keras.Model:
    """Build the modified ResNet-18: 64-128-256-512 channels, two residual blocks each.

    Source: Zhang et al., "Dive into Deep Learning", section "Concise Implementation for Multiple GPUs", after
    He et al., "Deep Residual Learning for Image Recognition", 2016. As there, convolutions have biases
    although batch normalization follows, and the normalization has PyTorch's defaults: epsilon 1e-5, and
    moving averages that keep 0.9. Channels are last instead of first; the initialization is that of Keras.

    Args:
        input_shape: (height, width, channels) of one image; the input is (batch, height, width, channels),
            float. Three stages halve height and width, rounding up.
        num_classes: width of the output.

    Returns:
        A model with logits (batch, num_classes), float32 under every precision policy.

    Raises:
        ValueError: an argument is not what is described above.
    """
    shape = image_shape(input_shape)
    num_classes = whole_number("num_classes", num_classes)

    images = keras.Input(shape, name="images")  # (batch, height, width, channels)
    x = _convolution(64, 3, name="stem_conv")(images)  # (batch, height, width, 64)
    x = _normalization(name="stem_norm")(x)
    x = keras.layers.ReLU(name="stem_relu")(x)
    for stage, channels in enumerate(STAGE_CHANNELS, start=1):
        for block in range(1, BLOCKS_PER_STAGE + 1):
            halve = block == 1 and stage > 1  # the stem already has the channels and the size of stage 1
            x = _residual_block(x, channels, halve=halve, name=f"stage{stage}_block{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)  # (batch, 512)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)  # (batch, num_classes)
    return keras.Model(images, logits, name="resnet18")


def _residual_block(x: Any, channels: int, halve: bool, name: str) -> Any:
    """Add two convolutions' change to ``x``; with ``halve``, at half the size and with other channels.

    (batch, height, width, any) -> (batch, height', width', channels); height' is height, or half rounded up.
    """
    strides = 2 if halve else 1
    shortcut = _convolution(channels, 1, strides, name=f"{name}_shortcut")(x) if halve else x
    x = _convolution(channels, 3, strides, name=f"{name}_conv1")(x)  # (batch, height', width', channels)
    x = _normalization(name=f"{name}_norm1")(x)
    x = keras.layers.ReLU(name=f"{name}_relu1")(x)
    x = _convolution(channels, 3, name=f"{name}_conv2")(x)  # (batch, height', width', channels)
    x = _normalization(name=f"{name}_norm2")(x)
    x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return keras.layers.ReLU(name=f"{name}_relu2")(x)


def _convolution(channels: int, kernel_size: int, strides: int = 1, *, name: str) -> keras.layers.Layer:
    # With stride 2 on an even size, "same" pads one pixel at the end where PyTorch's padding=1 pads one at
    # each side: the same sizes and work, but windows one pixel further on. Weights of the source's net would
    # need explicit padding layers here; timing and training do not.
    return keras.layers.Conv2D(channels, kernel_size, strides, padding="same", name=name)


def _normalization(name: str) -> keras.layers.Layer:
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)
