from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest


@pytest.fixture
def examples() -> Callable[..., np.ndarray]:
    """A function (net, batch size) -> input of that net: pixels and features in [-1, 1), or token ids."""

    def make(net: keras.Model, batch: int = 3) -> np.ndarray:
        generator = np.random.default_rng(0)
        shape = (batch, *net.input_shape[1:])
        if net.inputs[0].dtype == "int32":
            return generator.integers(0, net.get_layer("token_embedding").input_dim, shape, dtype=np.int32)
        return generator.uniform(-1, 1, shape).astype(np.float32)

    return make


@pytest.fixture
def use_policy() -> Iterator[Callable[[str], None]]:
    """Set the global precision policy; the test's end restores it."""
    saved = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(saved)
