"""The exported net, loaded by TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.engines.c_api import TENSORS
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.engines.tensorflow_runtime import call_with_arrays, prove_precision, use_threads
from tfperf.exports.graphs import read_meta_graph, tensors_of
from tfperf.exports.servable import Servable
from tfperf.exports.signature import SIGNATURE_NAME, Signature

__all__ = ["convert", "load"]


def convert(servable: Servable, plan: Plan, _examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write a SavedModel in the plan's precision, transformed."""
    variant = servable.variant(plan.precision, plan.transformations)
    variant.save(folder)
    meta_graph = read_meta_graph(folder)
    (folder / TENSORS).write_text(json.dumps(tensors_of(meta_graph)), encoding="utf-8")
    return {"precision": prove_precision(meta_graph.graph_def, plan.precision), **variant.changes}


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load it, and call its one signature."""
    threads = use_threads(plan.threads)
    loaded = tf.saved_model.load(str(folder))
    run = call_with_arrays(loaded.signatures[SIGNATURE_NAME], signature)
    return Runner(
        plan,
        signature,
        run,
        proof={**proof, "threads": threads},
        close=lambda: vars(loaded).clear(),
    )
