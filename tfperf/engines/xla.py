"""`tf.function(net, jit_compile=True)`: compiled by XLA, once for each batch size that comes."""

import tensorflow as tf

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.engines.tensorflow_runtime import call_with_arrays, prove_precision, use_threads
from tfperf.errors import EngineError, shortened
from tfperf.exports.servable import Servable

__all__ = ["build"]


def build(servable: Servable, plan: Plan) -> Runner:
    """Trace it for XLA, and see in the compiler's own output that it compiles it.

    Raises:
        EngineError: XLA has no equivalent of one of its operations.
    """
    threads = use_threads(plan.threads)
    variant = servable.variant(plan.precision, plan.transformations)
    compiled = tf.function(variant.call, jit_compile=True)
    # Called as one operation by itself, a function of TensorFlow runs uncompiled; within another it is compiled
    traced = Servable(variant.name, variant.signature, compiled, keeps=[variant]).trace(plan.batch)
    precision = prove_precision(traced.graph.as_graph_def(), plan.precision)
    run = call_with_arrays(traced, servable.signature)
    proof = {"precision": precision, "threads": threads, "xla": _fusions(variant, plan), **variant.changes}
    return Runner(plan, servable.signature, run, proof=proof)


def _fusions(servable: Servable, plan: Plan) -> str:
    """What the compiler made of it, in words."""
    examples = servable.signature.random_inputs(plan.batch or 1)
    named = {name: tf.constant(array) for name, array in servable.named(examples).items()}
    function = tf.function(servable.call, jit_compile=True)
    try:
        compiled = function.experimental_get_compiler_ir(**named)(stage="optimized_hlo")
    except (tf.errors.OpError, ValueError) as error:
        raise EngineError(f"XLA cannot compile '{servable.name}': {shortened(error)}") from error
    return f"compiled to {compiled.count(' = ')} instructions, {compiled.count(' fusion(')} of them fused"
