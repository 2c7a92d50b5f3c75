"""`net.predict`: made for data sets, and often used for a single example."""

from typing import Any

import keras
import numpy as np

from tfperf.engines.eager import in_policy, net_of, prove_policy
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.engines.tensorflow_runtime import use_threads
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable

__all__ = ["build"]


def build(servable: Servable, plan: Plan) -> Runner:
    """Call `predict` with the whole batch at once, silently."""
    threads = use_threads(plan.threads)
    net, pack = net_of(servable, plan), servable.pack
    if (number := len(pack(servable.signature.inputs))) > 1:
        raise EngineError(f"predict passes one argument to a net's call. '{servable.name}' takes {number}")
    traced = None

    def run(*arrays: Any) -> Arrays:
        nonlocal traced
        # Keras keeps the function that it traced, in the policy of that time; the net's own is left to its owner
        theirs, net.predict_function = net.predict_function, traced
        try:
            answer = net.predict(*pack(arrays), batch_size=len(arrays[0]), verbose=0)
        finally:
            traced, net.predict_function = net.predict_function, theirs
        return tuple(np.asarray(array) for array in keras.tree.flatten(answer))

    proof = {"precision": prove_policy(net, plan), "threads": threads}
    return Runner(plan, servable.signature, in_policy(servable, plan, run), proof=proof)
