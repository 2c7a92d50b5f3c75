"""The multilayer perceptron: small enough that the cost of calling it outweighs its arithmetic."""

from collections.abc import Sequence

import keras

from tfperf.nets.arguments import whole_number, whole_numbers

__all__ = ["build"]


def build(
    input_shape: tuple[int] = (512,), hidden_units: Sequence[int] = (256, 128), num_classes: int = 2
) -> keras.Model:
    """Build a perceptron with ReLU hidden layers: Dense 256, 128, 2 unless told otherwise.

    Source: Zhang et al., "Dive into Deep Learning", section "Compilers and Interpreters" (``get_net``).

    Args:
        input_shape: (features,) of one example; the input is (batch, features), float.
        hidden_units: width of each hidden layer; () makes a linear classifier.
        num_classes: width of the output.

    Returns:
        A model with logits (batch, num_classes), float32 under every precision policy.

    Raises:
        ValueError: an argument is not what is described above.
    """
    (features,) = whole_numbers("input_shape", input_shape, length=1)
    hidden_units = whole_numbers("hidden_units", hidden_units)
    num_classes = whole_number("num_classes", num_classes)

    net = keras.Sequential(name="mlp")
    net.add(keras.Input((features,), name="features"))  # (batch, features)
    for index, units in enumerate(hidden_units, start=1):
        net.add(keras.layers.Dense(units, activation="relu", name=f"hidden_{index}"))  # (batch, units)
    net.add(keras.layers.Dense(num_classes, dtype="float32", name="logits"))  # (batch, num_classes)
    return net
