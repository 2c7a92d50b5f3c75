"""Write a net as TensorFlow Serving and every other loader wants it: whole, or not at all."""

import importlib.metadata
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import ExportError, shortened
from tfperf.exports.graphs import read_meta_graph, tensors_of
from tfperf.exports.manifest import EXTRA, MANIFEST, REFERENCE, Manifest, digests_of, fingerprint
from tfperf.exports.servable import Servable
from tfperf.exports.signature import SIGNATURE_NAME
from tfperf.exports.warm_up import write_requests
from tfperf.files import writing_folder_whole, writing_whole

__all__ = ["export", "newest_version", "write_version"]

REFERENCE_BATCH = 4
"""Examples of the reference inputs, unless the user gives inputs."""

WARM_UP_BATCHES = (1,)
PACKAGES = ("tfperf", "tensorflow", "keras", "numpy")


def export(
    net: keras.Model | Servable,
    folder: Path | str = "saved_models",
    *,
    name: str | None = None,
    version: int | None = None,
    example: Any = None,
    inputs: Sequence[NDArray[Any]] | None = None,
    preprocess: keras.Model | Servable | None = None,
    softmax: bool = False,
    warm_up: Sequence[int] = WARM_UP_BATCHES,
) -> Path:
    """Write `folder/NAME/VERSION/`, a SavedModel in TensorFlow Serving's layout.

    It has the one signature "serving_default" with named inputs and outputs and a batch of any size. It computes in
    float32 by the layers of Keras, whatever the policy of the net and the form that `tfperf.training` has given its
    layers. It carries, under `assets.extra/`: warm-up requests for TensorFlow Serving, reference inputs and outputs,
    and a manifest by which `verify` knows that it is whole. It appears whole or not at all, and replaces nothing.

    Args:
        net: a Keras model.
        folder: of all nets.
        name: of the net's folder; None: the net's name.
        version: 1 or more; None: one more than the newest there.
        example: what the net is called with, for a subclass whose inputs Keras does not know.
        inputs: reference inputs, in the order of the signature, (batch, ...) each; None: random ones.
        preprocess: a net whose outputs are the inputs of `net`; it becomes part of the graph.
        softmax: give probabilities where the net gives logits.
        warm_up: batch sizes of the warm-up requests.

    Returns:
        The version's folder.

    Raises:
        ExportError: the net cannot be traced, its answers are not finite, or the version is there already.
        ValueError: an argument is out of its range.
        OSError: the folder is not writable, or the disk is full.
    """
    servable = net if isinstance(net, Servable) else Servable.from_net(net, example)
    if softmax:
        servable = servable.with_softmax()
    if preprocess is not None:
        servable = servable.after(preprocess if isinstance(preprocess, Servable) else Servable.from_net(preprocess))
    name = servable.name if name is None else name
    if not name or Path(name).name != name or name.startswith("."):
        raise ValueError(f"expected a name that a folder can have. Received: name={name!r}")
    if any(batch < 1 for batch in warm_up):
        raise ValueError(f"expected warm-up batches of 1 or more. Received: {list(warm_up)}")
    home = Path(folder) / name
    number = newest_version(home) + 1 if version is None else version
    if number < 1:
        raise ValueError(f"expected a version of 1 or more. Received: {number}")
    return write_version(servable, home, name, number, inputs, warm_up)


def newest_version(home: Path) -> int:
    """The largest number among a net's versions; 0: there is none."""
    numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()] if home.is_dir() else []
    return max(numbers, default=0)


def write_version(
    servable: Servable,
    home: Path,
    name: str,
    version: int,
    inputs: Sequence[NDArray[Any]] | None,
    warm_up: Sequence[int],
) -> Path:
    """Write one version of a net.

    Raises:
        ExportError: it is there already, TensorFlow cannot write it, or the answers to the reference inputs are not
            finite numbers.
    """
    target = home / str(version)
    if target.exists():
        raise ExportError(f"expected a version that is not there yet, {target} is; give another, or remove it")
    signature = servable.signature
    given = signature.random_inputs(REFERENCE_BATCH) if inputs is None else tuple(map(np.asarray, inputs))
    signature.check(given)
    with writing_folder_whole(target, replace=False) as aside:
        try:
            servable.save(aside)
        except tf.errors.OpError as error:  # as TensorFlow tells a full disk
            raise ExportError(f"{target} cannot be written: {shortened(error.message)}") from error
        (aside / EXTRA).mkdir()
        outputs = _answers(aside, servable, given)
        _write_reference(aside, servable, given, outputs)
        requests = (servable.named(signature.random_inputs(batch)) for batch in warm_up)
        write_requests(aside, name, SIGNATURE_NAME, requests)
        files = digests_of(aside)
        manifest = Manifest(
            format=1,
            name=name,
            version=version,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            made_with=_versions(),
            signature=signature,
            tensors=tensors_of(read_meta_graph(aside)),
            files=files,
            fingerprint=fingerprint(files),
        )
        with writing_whole(aside / MANIFEST) as file:
            file.write(manifest.encoded())
    return target


def _answers(folder: Path, servable: Servable, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the written graph answers: a reference that a loader must give to the last bit on the same machine."""
    serve = tf.saved_model.load(str(folder)).signatures[SIGNATURE_NAME]
    answers = serve(**{key: tf.constant(array) for key, array in servable.named(inputs).items()})
    outputs = [answers[form.name].numpy() for form in servable.signature.outputs]
    for form, output in zip(servable.signature.outputs, outputs, strict=True):
        if output.dtype.kind not in "fiub":
            raise ExportError(f"expected outputs that are numbers, {form.name} is {form.dtype}")
        if output.dtype.kind == "f" and not np.isfinite(output).all():
            raise ExportError(f"expected finite outputs for the reference inputs, {form.name} holds NaN or infinity")
    return outputs


def _write_reference(
    folder: Path, servable: Servable, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]
) -> None:
    sides = (("inputs", servable.signature.inputs, inputs), ("outputs", servable.signature.outputs, outputs))
    arrays = {
        f"{side}/{form.name}": array.astype(np.bytes_) if array.dtype == object else array
        for side, forms, given in sides
        for form, array in zip(forms, given, strict=True)
    }
    with (folder / REFERENCE).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
