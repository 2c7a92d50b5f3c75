"""The convolutional net of many MNIST tutorials: one convolution, one hidden layer."""

import keras

from tfperf.nets.arguments import image_shape, whole_number

__all__ = ["build"]


def build(input_shape: tuple[int, int, int] = (28, 28, 1), num_classes: int = 10) -> keras.Model:
    """Build Conv 32 of 3x3, max pool 2x2, Dense 64, Dense 10.

    The tutorial it comes from ends in a softmax. This net ends in logits: a softmax in float16 rounds small
    probabilities to 0, whose logarithm is infinite. Train it with ``from_logits=True``, where the loss
    computes the logarithm of the softmax in one stable step; the largest logit is the class either way.

    Args:
        input_shape: (height, width, channels) of one image, height and width of 4 or more; the input is
            (batch, height, width, channels), float.
        num_classes: width of the output.

    Returns:
        A model with logits (batch, num_classes), float32 under every precision policy.

    Raises:
        ValueError: an argument is not what is described above.
    """
    # The convolution takes 2 off each side length, and pooling halves the rest: 4 is the least that leaves 1.
    height, width, channels = image_shape(input_shape, smallest=4)
    num_classes = whole_number("num_classes", num_classes)

    return keras.Sequential(
        [
            keras.Input((height, width, channels), name="images"),
            keras.layers.Conv2D(32, 3, activation="relu", name="conv"),  # (batch, height - 2, width - 2, 32)
            keras.layers.MaxPooling2D(2, name="pool"),  # (batch, (height - 2) // 2, (width - 2) // 2, 32)
            keras.layers.Flatten(name="flatten"),  # (batch, 5408) for 28x28
            keras.layers.Dense(64, activation="relu", name="hidden"),  # (batch, 64)
            keras.layers.Dense(num_classes, dtype="float32", name="logits"),  # (batch, num_classes)
        ],
        name="mnist_cnn",
    )
