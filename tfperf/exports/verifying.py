"""Is an export what was written, and does it still answer what it answered?"""

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tfperf.errors import ExportError, shortened
from tfperf.exports.arrays import read_arrays
from tfperf.exports.manifest import REFERENCE, Manifest, listed
from tfperf.exports.signature import SIGNATURE_NAME
from tfperf.exports.writing import newest_version
from tfperf.measure.agreement import Agreement, check_agreement

__all__ = ["Verified", "verify"]

TOLERANCE = 1e-4
"""Largest relative error of an answer: another processor adds up in another order."""


class Verified(NamedTuple):
    """What `verify` found in order."""

    folder: Path
    manifest: Manifest
    agreement: Agreement
    same_bits: bool
    """Whether the answers are those of the machine that exported, bit by bit."""


def verify(folder: Path | str) -> Verified:
    """Check each file of an export, load it with TensorFlow, and have it answer its reference inputs.

    Args:
        folder: of a version; of a net: its newest version.

    Raises:
        ExportError: a file is missing, altered or unknown, TensorFlow cannot load it, or an answer is another.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ExportError(f"expected the folder of an export, {place} is not there")
    newest = newest_version(place)
    if newest and not (place / "saved_model.pb").exists():
        place = place / str(newest)
    manifest = Manifest.read(place)
    try:
        faults = list(manifest.faults(place))
    except OSError as error:
        raise ExportError(f"{place} cannot be read: {error.filename}: {error.strerror}") from error
    if faults:
        raise ExportError(f"{place} is not as it was exported: {listed(faults)}")
    reference = read_arrays(place / REFERENCE)
    known = {"inputs": manifest.signature.inputs, "outputs": manifest.signature.outputs}
    if missing := [
        f"{side}/{one.name}" for side in known for one in known[side] if f"{side}/{one.name}" not in reference
    ]:
        raise ExportError(f"{place} is not as it was exported: {REFERENCE} lacks {missing[0]}")
    expected = {form.name: reference[f"outputs/{form.name}"] for form in manifest.signature.outputs}
    try:
        loaded = tf.saved_model.load(str(place))
        serve = loaded.signatures[SIGNATURE_NAME]
        inputs = {form.name: tf.constant(reference[f"inputs/{form.name}"]) for form in manifest.signature.inputs}
        answered = serve(**inputs)
        answers = {name: answered[name].numpy() for name in expected}
    except Exception as error:
        raise ExportError(f"{place} cannot be loaded and run: {shortened(error)}") from error
    agreement = check_agreement(f"{manifest.name} version {manifest.version}", answers, expected, TOLERANCE)
    if not agreement.passed:
        raise ExportError(f"{place} gives other outputs than when it was exported: {agreement}")
    same = all(answers[name].tobytes() == array.tobytes() for name, array in expected.items())
    return Verified(place, manifest, agreement, same)
