"""The winner as a script of Keras and `tfperf.training`, with the model and data that were named."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from tfperf.data import NAMES as DATA_NAMES
from tfperf.nets import NAMES
from tfperf.report.training import answer
from tfperf.search.outcome import FROM_PYTHON
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.training.plan import CHANGES, LOOPS, TrainingPlan

__all__ = ["script"]

FUNCTIONS = ("fast_optimizer", "fit", "fuse", "use_mixed_precision")
"""Functions of `tfperf.training` that the lines of changes and loops call."""

EPOCHS = 10


def script(outcome: TrainingOutcome, plan: TrainingPlan) -> str:
    """A Python script that trains by a plan.

    Args:
        outcome: says which model and data; those that a program gave are left for the reader to fill in.
        plan: applied line by line, so that it can be read and changed.
    """
    body = [*_model_and_data(outcome), "", *_changes(outcome, plan), "", *_training(outcome, plan)]
    used = [name for name in FUNCTIONS if any(line.startswith(f"{name}(") for line in body)]
    if plan.threads is not None:
        body.insert(0, f"tf.config.threading.set_intra_op_parallelism_threads({plan.threads})")
    parts = [_docstring(outcome, plan), *_imports(outcome, plan, used), "", *body]
    return "\n".join(parts) + "\n"


def _docstring(outcome: TrainingOutcome, plan: TrainingPlan) -> str:
    variables = " ".join(f"{name}={value}" for name, value in plan.environment.items())
    start = f"\n\nStart it with: {variables} python FILE" if variables else ""
    answered = textwrap.fill(f"{answer(outcome)}.", 100, break_long_words=False)
    words = f"{answered}{start}".replace("\\", "\\\\").replace('"', "'")
    return f'"""Train {outcome.model} as `tfperf tune --train` found fastest.\n\n{words}\n"""\n'


def _imports(outcome: TrainingOutcome, plan: TrainingPlan, used: list[str]) -> Iterator[str]:
    own = [named for named, known in _sources(outcome) if named not in known and named.rpartition(":")[0]]
    files = [Path(named.rpartition(":")[0]) for named in own if named.rpartition(":")[0].endswith(".py")]
    if files:
        yield "import sys\n"
    yield "import keras"
    if any(_is_array_file(named) for named, _ in _sources(outcome)):
        yield "import numpy as np"
    if plan.threads is not None:
        yield "import tensorflow as tf"
    yield ""
    if outcome.data in DATA_NAMES:
        yield "from tfperf.data import load"
    if outcome.opened_as in NAMES:
        yield "from tfperf.nets import get_net"
    if used:
        yield f"from tfperf.training import {', '.join(used)}"
    if files:
        yield "\n" + "\n".join(sorted({f"sys.path.insert(0, {str(file.resolve().parent)!r})" for file in files}))
    for named in own:
        place, _, name = named.rpartition(":")
        yield f"from {Path(place).stem if place.endswith('.py') else place} import {name}"


def _sources(outcome: TrainingOutcome) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (outcome.opened_as, tuple(NAMES)), (outcome.data, tuple(DATA_NAMES))


def _is_array_file(named: str) -> bool:
    return named.endswith(".npz")


def _model_and_data(outcome: TrainingOutcome) -> Iterator[str]:
    model, data = outcome.opened_as, outcome.data
    if model == FROM_PYTHON:
        yield "model = ...  # yours, compiled"
    elif model in NAMES:
        yield f"model = get_net({model!r})"
    elif model.endswith(".keras"):
        yield f"model = keras.saving.load_model({model!r})"
    else:
        yield f"model = {model.rpartition(':')[2]}()"
    if outcome.compiled:
        yield outcome.compiled
    names = "batches"
    if outcome.takes_arrays:
        names = "x, y, sample_weight" if outcome.takes_weights else "x, y"
    if data == FROM_PYTHON:
        yield f"{names} = ...  # yours"
    elif data in DATA_NAMES:
        yield f"dataset = load({data!r})"
        reshaped = "" if outcome.reshaped is None else f".reshape{(-1, *outcome.reshaped)}"
        yield f'x = dataset.train_images.astype("float32"){reshaped} / 255'
        yield "y = dataset.train_labels"
    elif _is_array_file(data):
        yield f"with np.load({data!r}) as stored:"
        yield f"    {names} = " + ", ".join(f'stored["{name}"]' for name in names.split(", "))
    else:
        yield f"{names} = {data.rpartition(':')[2]}()"


def _changes(outcome: TrainingOutcome, plan: TrainingPlan) -> Iterator[str]:
    if plan.changes:
        size = plan.batch_size or outcome.batch_size
        arrays = f"inputs = keras.tree.map_structure(lambda array: array[:{size}], x)"
        yield arrays if outcome.takes_arrays else "inputs, *_ = next(iter(batches))"
        yield "model(inputs)  # builds it"
    yield from (CHANGES[name].code for name in plan.changes)
    if plan.steps_per_execution > 1:
        yield f"model.steps_per_execution = {plan.steps_per_execution}"


def _training(outcome: TrainingOutcome, plan: TrainingPlan) -> Iterator[str]:
    if outcome.takes_arrays:
        weights = ", sample_weight=sample_weight" if outcome.takes_weights else ""
        size = plan.batch_size or outcome.batch_size
        yield f"{LOOPS[plan.loop].code}{weights}, batch_size={size}, epochs={EPOCHS})"
    else:
        yield f"model.fit(batches, epochs={EPOCHS})"
    yield 'model.save("trained.keras")'
