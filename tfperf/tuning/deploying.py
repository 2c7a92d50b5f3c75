"""A plan of a net as files: what its engine loads, how, and answers to check it by."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from tfperf.engines.building import conversions_folder, load
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.checking import TOLERANCES, check_runner
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.engines.trial import Trial
from tfperf.errors import EngineError, in_one_line
from tfperf.exports.arrays import read_arrays
from tfperf.exports.signature import Signature
from tfperf.files import writing_folder_whole
from tfperf.measure.value import Count, Value

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["DEPLOYMENT", "load_deployed", "write_deployment"]

DEPLOYMENT = "plan.json"
"""Beside the folder `net/`, which the engine loads, and `reference.npz`."""

STAND_IN = "saved_model"
"""What is written for a plan that calls the net in Python: its graph, for TensorFlow anywhere."""


class Deployment(Value):
    """What the files are."""

    plan: Plan
    signature: Signature
    tolerance: float = Field(ge=0, description="largest relative error of the answers to `reference.npz`")
    size: Count = Field(description="bytes of `net/`")


def write_deployment(
    folder: Path, servable: "Servable", trial: Trial, inputs: Sequence[NDArray[Any]] | None, cache: Path | None
) -> Path:
    """Write what runs a plan elsewhere, whole or not at all: `plan.json`, `net/` and `reference.npz`.

    A plan whose engine calls the net in Python is written as a SavedModel with the same precision and transformations.

    Raises:
        EngineError: the engine cannot take the net.
        OSError: the folder is not empty, not writable, or the disk is full.
    """
    from tfperf.engines.conversions import Conversions  # which opens nets: to load what is written takes no Keras

    plan = trial.plan
    if find_engine(plan.engine).format is None:
        plan = plan.model_copy(update={"engine": STAND_IN})
    made = Conversions(servable, cache or conversions_folder(), inputs).folder(plan)
    arrays = servable.signature.examples(trial.batch, inputs)
    named = {f"inputs/{name}": array for name, array in servable.named(arrays).items()}
    answers = servable.reference(arrays)
    named |= {f"outputs/{form.name}": one for form, one in zip(servable.signature.outputs, answers, strict=True)}
    tolerance = trial.agreement.tolerance if trial.agreement else TOLERANCES[plan.precision]
    with writing_folder_whole(folder, replace=False) as aside:
        shutil.copytree(made, aside / "net")
        size = sum(file.stat().st_size for file in (aside / "net").rglob("*") if file.is_file())
        about = Deployment(plan=plan, signature=servable.signature, tolerance=tolerance, size=size)
        (aside / DEPLOYMENT).write_text(about.model_dump_json(indent=1) + "\n")
        np.savez(aside / "reference.npz", **named)
    return folder


def load_deployed(folder: Path | str) -> Runner:
    """Load what `write_deployment` wrote, and check its answers; Keras and the model's code are not needed.

    Raises:
        EngineError: the folder holds no deployment, its engine is not installed, or it answers wrongly here.
    """
    folder = Path(folder)
    try:
        about = Deployment.model_validate_json((folder / DEPLOYMENT).read_bytes())
    except (OSError, ValidationError) as error:
        raise EngineError(f"expected a folder that tfperf tune --export wrote. Received: {folder}") from error
    if wanted := missing(find_engine(about.plan.engine)):
        raise EngineError(wanted)
    try:
        arrays = read_arrays(folder / "reference.npz")
        inputs = [arrays[f"inputs/{form.name}"] for form in about.signature.inputs]
        answers = [arrays[f"outputs/{form.name}"] for form in about.signature.outputs]
        runner = load(folder / "net", about.signature, about.plan)
        check_runner(runner, inputs, answers, about.tolerance)
    except EngineError:
        raise
    except Exception as error:  # whatever an engine says to files that are damaged
        raise EngineError(f"expected all that tfperf tune --export wrote in {folder}: {in_one_line(error)}") from error
    return runner
