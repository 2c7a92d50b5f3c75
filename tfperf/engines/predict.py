"""`net.predict`: made for data sets, and often used for a single example."""

from typing import Any

import keras
import numpy as np

from tfperf.engines.eager import in_policy, net_of
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.engines.tensorflow_threads import use_threads
from tfperf.exports.servable import Servable

__all__ = ["build"]


def build(servable: Servable, plan: Plan) -> Runner:
    """Call `predict` with the whole batch at once, silently."""
    threads = use_threads(plan.threads)
    net, pack = net_of(servable, plan), servable.pack

    def run(*arrays: Any) -> Arrays:
        answer = net.predict(*pack(arrays), batch_size=len(arrays[0]), verbose=0)
        return tuple(np.asarray(array) for array in keras.tree.flatten(answer))

    proof = {"precision": "each layer's policy is float32", "threads": threads}
    return Runner(plan, servable.signature, in_policy(net, plan, run), proof=proof)
