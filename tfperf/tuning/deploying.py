"""A plan of a net as files: what its engine loads, how, answers to check it by, and a manifest of all that."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from tfperf.engines.building import conversions_folder, load
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.checking import TOLERANCES, check_runner
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.errors import EngineError, ExportError, in_one_line
from tfperf.exports.arrays import read_arrays
from tfperf.exports.manifest import (
    Digest,
    FileDigest,
    digests_of,
    encoded,
    faults_of,
    fingerprint,
    listed,
    paths_of,
    read_manifest,
)
from tfperf.exports.signature import Signature
from tfperf.files import is_foreign, writing_folder_whole
from tfperf.measure.value import Count, Value
from tfperf.trials.trial import Trial

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["DEPLOYMENT", "load_deployed", "write_deployment"]

DEPLOYMENT = "plan.json"
"""Beside the folder `net/`, which the engine loads, `reference.npz`, and the manifest."""

MANIFEST = "manifest.json"

REFERENCE = "reference.npz"

EXPECTED = f"expected a folder that tfperf tune --export wrote, with its {MANIFEST}"


class Deployment(Value):
    """What the files are."""

    plan: Plan
    signature: Signature
    tolerance: float = Field(ge=0, description="largest relative error of the answers to `reference.npz`")
    size: Count = Field(description="bytes of `net/`")


class DeploymentManifest(Value):
    """What `manifest.json` holds. Version 1 is the first."""

    format: Literal[1] = 1
    files: tuple[FileDigest, ...]
    fingerprint: Digest = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the list of files")


def write_deployment(
    folder: Path, servable: "Servable", trial: Trial, inputs: Sequence[NDArray[Any]] | None, cache: Path | None
) -> Path:
    """Write what runs a plan elsewhere, whole or not at all: `plan.json`, `net/`, `reference.npz`, `manifest.json`.

    A plan whose engine calls the net in Python is written as a SavedModel with the same precision and transformations.

    Raises:
        EngineError: the engine cannot take the net.
        OSError: the folder is not empty, not writable, or the disk is full.
    """
    from tfperf.engines.conversions import Conversions  # which opens nets: to load what is written takes no Keras

    plan = trial.plan
    if (engine := find_engine(plan.engine)).format is None:
        plan = plan.model_copy(update={"engine": engine.exported_as})
    conversions = Conversions(servable, cache or conversions_folder(), inputs)
    made = conversions.folder(plan)
    arrays = servable.signature.examples(trial.batch, inputs)
    named = {f"inputs/{name}": array for name, array in servable.named(arrays).items()}
    answers = servable.reference(arrays)
    named |= {f"outputs/{form.name}": one for form, one in zip(servable.signature.outputs, answers, strict=True)}
    tolerance = trial.agreement.tolerance if trial.agreement else TOLERANCES[plan.precision]
    with writing_folder_whole(folder, replace=False) as aside:
        _copy(made, aside / "net")
        size = sum((aside / "net" / path).stat().st_size for path in paths_of(aside / "net"))
        about = Deployment(plan=plan, signature=servable.signature, tolerance=tolerance, size=size)
        (aside / DEPLOYMENT).write_text(about.model_dump_json(indent=1) + "\n", encoding="utf-8")
        with (aside / REFERENCE).open("wb") as file:
            np.savez(file, **named)
        files = digests_of(aside, MANIFEST)
        manifest = DeploymentManifest(files=files, fingerprint=fingerprint(files))
        (aside / MANIFEST).write_bytes(encoded(manifest))
    return folder


def load_deployed(folder: Path | str) -> Runner:
    """Load what `write_deployment` wrote, and check its answers; Keras and the model's code are not needed.

    What an engine loads is code, and runs as this user. Every file is compared with the manifest before any of it is
    loaded, which notices damage; whoever can write the folder can write another manifest, too.

    Raises:
        EngineError: the folder holds no deployment, a file is altered, missing, added, a link out of the folder or
            somebody else's, the engine is not installed, or it answers wrongly here.
    """
    folder = Path(folder)
    _check_files(folder)
    try:
        about = Deployment.model_validate_json((folder / DEPLOYMENT).read_bytes())
    except (OSError, ValidationError) as error:
        raise EngineError(f"{EXPECTED}. Received: {folder}: {in_one_line(error)}") from error
    if wanted := missing(find_engine(about.plan.engine)):
        raise EngineError(wanted)
    try:
        arrays = read_arrays(folder / REFERENCE)
        inputs = [arrays[f"inputs/{form.name}"] for form in about.signature.inputs]
        answers = [arrays[f"outputs/{form.name}"] for form in about.signature.outputs]
        runner = load(folder / "net", about.signature, about.plan)
        check_runner(runner, inputs, answers, about.tolerance)
    except EngineError:
        raise
    except Exception as error:  # whatever an engine says to files of another version
        raise EngineError(f"expected all that tfperf tune --export wrote in {folder}: {in_one_line(error)}") from error
    return runner


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a folder; the first that cannot be copied is an OSError that names it."""
    for path in paths_of(source):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


def _check_files(folder: Path) -> None:
    """Refuse a folder that is not as it was written, before anything of it is loaded.

    Raises:
        EngineError: says in one line what of it is not.
    """
    try:
        for path in (folder, folder.resolve(), *sorted(folder.rglob("*"))):
            if is_foreign(path.lstat()):
                raise EngineError(
                    f"expected {path} to belong to this user or to root: user {path.lstat().st_uid} could change it at "
                    f"any time; if you trust what is in it: chown -R $(id -u) {shlex.quote(str(folder))}"
                )
        manifest = read_manifest(folder / MANIFEST, DeploymentManifest)
        faults = list(faults_of(folder, manifest.files, MANIFEST))
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror}"
        raise EngineError(f"{EXPECTED}. Received: {folder}: {reason}") from error
    except ExportError as error:
        raise EngineError(str(error)) from error
    if faults:
        raise EngineError(f"{folder} is not as tfperf tune --export wrote it: {listed(faults)}")
