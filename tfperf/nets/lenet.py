"""LeNet as "Dive into Deep Learning" writes it out to train it on several devices."""

import keras

from tfperf.nets.arguments import image_shape, whole_number

__all__ = ["build"]


def build(input_shape: tuple[int, int, int] = (28, 28, 1), num_classes: int = 10) -> keras.Model:
    """Build Conv 20 of 3x3, average pool, Conv 50 of 5x5, average pool, Dense 128, Dense 10, with ReLU.

    Source: Zhang et al., "Dive into Deep Learning", section "Training on Multiple GPUs", with channels last
    instead of first, and the Keras initialization instead of normal with deviation 0.01.

    Args:
        input_shape: (height, width, channels) of one image, height and width of 14 or more, as no
            convolution pads; the input is (batch, height, width, channels), float.
        num_classes: width of the output.

    Returns:
        A model with logits (batch, num_classes), float32 under every precision policy.

    Raises:
        ValueError: an argument is not what is described above.
    """
    # 14 - 2 = 12, pooled 6, 6 - 4 = 2, pooled 1: nothing smaller leaves a pixel.
    height, width, channels = image_shape(input_shape, smallest=14)
    num_classes = whole_number("num_classes", num_classes)

    return keras.Sequential(
        [
            keras.Input((height, width, channels), name="images"),  # the sizes below are for 28x28
            keras.layers.Conv2D(20, 3, activation="relu", name="conv_1"),  # (batch, 26, 26, 20)
            keras.layers.AveragePooling2D(2, name="pool_1"),  # (batch, 13, 13, 20)
            keras.layers.Conv2D(50, 5, activation="relu", name="conv_2"),  # (batch, 9, 9, 50)
            keras.layers.AveragePooling2D(2, name="pool_2"),  # (batch, 4, 4, 50)
            keras.layers.Flatten(name="flatten"),  # (batch, 800)
            keras.layers.Dense(128, activation="relu", name="hidden"),  # (batch, 128)
            keras.layers.Dense(num_classes, dtype="float32", name="logits"),  # (batch, num_classes)
        ],
        name="lenet",
    )
