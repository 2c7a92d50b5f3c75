"""The net as Python calls it, operation by operation: what users begin with, and the reference of all others."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.engines.tensorflow_runtime import use_threads
from tfperf.errors import EngineError
from tfperf.exports.keras_nets import computing_in, layers_to_switch
from tfperf.exports.servable import Servable

__all__ = ["build", "in_policy", "net_of", "prove_policy"]


def build(servable: Servable, plan: Plan) -> Runner:
    """Call the net as it is; in another precision than its own, its layers are switched around each call."""
    threads = use_threads(plan.threads)
    net, pack = net_of(servable, plan), servable.pack

    def run(*arrays: Any) -> Arrays:
        answer = net(*pack([tf.convert_to_tensor(array) for array in arrays]), training=False)
        return tuple(np.asarray(tensor) for tensor in keras.tree.flatten(answer))

    proof = {"precision": prove_policy(net, plan), "threads": threads}
    return Runner(plan, servable.signature, in_policy(servable, plan, run), proof=proof)


def prove_policy(net: Any, plan: Plan) -> str:
    """How many layers compute in the plan's precision while it runs, as they say themselves."""
    with computing_in(net, plan.precision):
        layers = net._flatten_layers(include_self=False)
        said = [layer.compute_dtype == plan.precision for layer in layers]
    return f"{sum(said)} of {len(said)} layers compute in {plan.precision}"


def net_of(servable: Servable, plan: Plan) -> Any:
    """The Keras net behind a servable.

    Raises:
        EngineError: there is none.
    """
    if servable.net is None:
        raise EngineError(f"{plan.engine} calls a Keras net, '{servable.name}' is a SavedModel; use saved_model")
    return servable.net


def in_policy(servable: Servable, plan: Plan, run: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """The call of a servable's net in the plan's precision, with answers of the signature's types."""
    net, dtypes = servable.net, [form.dtype for form in servable.signature.outputs]
    if plan.precision == "float32" and not layers_to_switch(net, plan.precision):
        return run

    def run_switched(*arrays: Any) -> Arrays:
        with computing_in(net, plan.precision):
            answers = run(*arrays)
        return tuple(answer.astype(dtype) for answer, dtype in zip(answers, dtypes, strict=True))

    return run_switched
