"""From a net and a plan to a runner."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfperf.caching import cache_folder, keep_within_bound
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.plan import TRANSFORMATIONS, Plan, Transformation
from tfperf.engines.runner import Runner
from tfperf.errors import EngineError, TfperfError, in_one_line
from tfperf.exports.signature import Signature
from tfperf.files import check_space

if TYPE_CHECKING:
    import keras

    from tfperf.exports.servable import Servable

__all__ = [
    "PROOF",
    "applicable",
    "build",
    "check_numbers",
    "compile_converted",
    "conversions_folder",
    "load",
    "write_proof",
]

PROOF = "proof.json"
"""What the conversion showed of the plan; beside what the engine loads, and no part of it."""


def build(
    net: "keras.Model | Servable",
    plan: Plan,
    *,
    example: Any = None,
    representative: Sequence[NDArray[Any]] | None = None,
    cache: Path | None = None,
) -> Runner:
    """Make a plan real for a net, in this process.

    Nothing is checked against the net's own answers: `check_runner` does that.

    Args:
        net: a Keras model: functional, sequential or a subclass, any number of inputs and outputs.
        plan: the engine and its settings.
        example: what the net is called with, for a subclass whose inputs Keras does not know.
        representative: inputs from which `int8_static` takes its scales; None: random ones.
        cache: folder of conversions; None: in tfperf's own cache.

    Raises:
        EngineError: there is no such engine, it is not installed, does not have what the plan asks for, cannot take
            the net, or threads are asked of a TensorFlow that has started with others.
        CacheError: there is no place for the cache, or others could change what is in it.
        OSError: the cache cannot be written.
    """
    from tfperf.engines.conversions import Conversions
    from tfperf.exports.servable import Servable

    engine = find_engine(plan.engine)
    engine.check(plan)
    if wanted := missing(engine):
        raise EngineError(wanted)
    servable = net if isinstance(net, Servable) else Servable.from_net(net, example)
    check_numbers(servable.signature)
    if engine.format is not None:
        conversions = Conversions(servable, cache or conversions_folder(), representative)
        return load(conversions.folder(plan), servable.signature, plan)  # which stays as long as `conversions`
    runner: Runner = engine.load_module().build(servable, plan)
    return runner


def load(folder: Path, signature: Signature, plan: Plan) -> Runner:
    """Make a plan real for a net that was converted for it; Keras is not needed, nor TensorFlow by engines outside it.

    Raises:
        EngineError: the engine cannot load it, or the plan does not take effect.
    """
    runner: Runner = find_engine(plan.engine).load_module().load(folder, signature, plan, _read_proof(folder))
    if runner.size is None:
        files = (file for file in folder.rglob("*") if file.is_file() and file.name != PROOF)
        runner.size = sum(file.stat().st_size for file in files)
    return runner


def compile_converted(source: Path, plan: Plan, folder: Path) -> None:
    """Compile what was converted for a plan whose engine asks for it; the net is not needed.

    Raises:
        EngineError: it cannot be compiled; names the plan, and the reason in one line.
        OSError: the folder cannot be written, or the disk is full.
    """
    module = find_engine(plan.engine).load_module()
    try:
        write_proof(folder, module.compile_converted(source, plan, folder, _read_proof(source)))
    except OSError:
        raise
    except Exception as error:
        check_space(folder, error)
        if isinstance(error, TfperfError):
            raise
        raise EngineError(f"{plan} cannot be compiled: {in_one_line(error)}") from error


def write_proof(folder: Path, proof: Mapping[str, str]) -> None:
    """Keep what a conversion showed, by what was asked for, beside what was converted."""
    (folder / PROOF).write_text(json.dumps(proof), encoding="utf-8")


def _read_proof(folder: Path) -> dict[str, str]:
    proof: dict[str, str] = json.loads((folder / PROOF).read_text(encoding="utf-8"))
    return proof


def applicable(net: "keras.Model | Servable") -> tuple[Transformation, ...]:
    """Those that would change the net, each by itself, in the order of `TRANSFORMATIONS`.

    Of a SavedModel, only constant_weights and fixed_batch can. In one plan fold_batch_norm leaves fuse_batch_norm the
    batch normalizations that cannot be folded: `Servable.batch_norms` tells whether there are any.

    Raises:
        ExportError: the net cannot be traced.
        TypeError: not a Keras model.
    """
    from tfperf.exports.servable import Servable

    servable = net if isinstance(net, Servable) else Servable.from_net(net)
    changing: set[Transformation] = set()
    if servable.trace().variables:
        changing.add("constant_weights")
    if any(form.batched for form in servable.signature.inputs):
        changing.add("fixed_batch")
    if servable.net is not None:
        found = servable.batch_norms()
        changing |= {"fold_batch_norm"} if found.foldable else set()
        changing |= {"fuse_batch_norm"} if found.fusable else set()
    return tuple(one for one in TRANSFORMATIONS if one in changing)


def check_numbers(signature: Signature) -> None:
    """Refuse a net that takes or gives anything but numbers and truth values.

    Raises:
        EngineError: names the first such input or output.
    """
    for form in (*signature.inputs, *signature.outputs):
        if form.dtype == "string" or np.dtype(form.dtype).kind not in "fiub":
            raise EngineError(f"expected a net from numbers to numbers. Received: {form}; leave it out of the net")


def conversions_folder() -> Path:
    """Where conversions are kept unless another place is given; the oldest go, where the cache has grown too large.

    Raises:
        CacheError: there is no place for the cache, or others could change what is in it.
    """
    folder = cache_folder("engines")
    keep_within_bound(folder)
    return folder
