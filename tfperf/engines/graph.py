"""`tf.function(net)`: traced once for batches of any size."""

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.engines.tensorflow_runtime import call_with_arrays, prove_precision, use_threads
from tfperf.exports.servable import Servable

__all__ = ["build"]


def build(servable: Servable, plan: Plan) -> Runner:
    """Trace it, and call the concrete function."""
    threads = use_threads(plan.threads)
    variant = servable.variant(plan.precision, plan.transformations)
    traced = variant.trace(plan.batch)
    precision = prove_precision(traced.graph.as_graph_def(), plan.precision)
    run = call_with_arrays(traced, servable.signature)
    return Runner(plan, servable.signature, run, proof={"precision": precision, "threads": threads, **variant.changes})
