"""JAX: the same net in Keras on JAX, one jitted function of its input.

The weights are constants of the function: faster, on each of the nets, than passing them with every call, which JAX
must look at one by one and XLA cannot compute with in advance.
"""

import jax
import numpy as np

from benchmarks.peers.given import Given, Loaded
from benchmarks.peers.nets import build_alike

__all__ = ["load"]


def load(given: Given) -> Loaded:
    """Make it ready to call."""
    with np.load(given.folder / "weights.npz", allow_pickle=False) as weights:
        built = build_alike(given.net, weights)
    trained = [variable.value for variable in built.trainable_variables]
    others = [variable.value for variable in built.non_trainable_variables]
    function = jax.jit(lambda x: built.stateless_call(trained, others, x, training=False)[0])
    return Loaded(
        lambda x: np.asarray(function(x)), jax.device_put, f"JAX {jax.__version__} on {jax.default_backend()}"
    )
