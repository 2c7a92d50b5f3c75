"""What is tuned: a net in this process, how other processes open it again, and what it is called with."""

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.engines.building import check_numbers
from tfperf.engines.checking import accuracy_of, check_labels
from tfperf.engines.plan import Plan
from tfperf.exports.arrays import in_order
from tfperf.exports.opening import open_model
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature
from tfperf.search.outcome import INPUTS_FILE, MODEL_FROM_PYTHON
from tfperf.search.question import Question
from tfperf.trials.process import Origin

__all__ = ["Subject", "read_subject"]

REFERENCE_BATCH = 64
"""Rows a call, for the accuracy of the net itself."""

Arrays = tuple[NDArray[Any], ...]


class Subject(NamedTuple):
    """A net with its inputs and labels, if there are any."""

    servable: Servable
    origin: Origin
    opened_as: str
    """What a person would give the command line for it; `MODEL_FROM_PYTHON` and its name where a program gave it."""
    signature: str | None
    seed: int
    inputs: Arrays | None
    """One array for each input, in the order of the signature; None: random ones are to be made."""
    labels: Arrays | None
    """One array for each output, empty for one without labels; None: there are none."""
    inputs_file: str | None
    """Where the inputs were read; None: a program gave them, or there are none."""
    labels_file: str | None
    graph_only: bool = False
    """Other processes open its graph in float32, and not its code."""

    @property
    def rows(self) -> int:
        """The number of examples in the inputs; 1 where there are none."""
        batched = [
            len(array)
            for form, array in zip(self.servable.signature.inputs, self.inputs or (), strict=False)
            if form.batched
        ]
        return min(batched, default=1)

    def digests(self) -> list[str]:
        """The SHA-256 of each input and label."""
        arrays = (*(self.inputs or ()), *(self.labels or ()))
        return [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays]

    def accuracy(self) -> float | None:
        """The share of labels that the net itself finds, in float32; None: there are no labels."""
        if self.inputs is None or self.labels is None:
            return None
        traced = self.servable.trace()
        names = [form.name for form in self.servable.signature.outputs]

        def call(*arrays: Any) -> list[NDArray[Any]]:
            answers = traced(**self.servable.named([tf.constant(array) for array in arrays]))
            return [answers[name].numpy() for name in names]

        return accuracy_of(self.servable.signature.in_batches(call, self.inputs, REFERENCE_BATCH), self.labels)

    def command(self, plan: Plan, batch: int, question: Question) -> str:
        """What runs a plan with a batch size alone: a command, or Python where a program gave the model."""
        if self.opened_as.startswith(MODEL_FROM_PYTHON):
            return self._call(plan)
        words = ["tfperf", "engines", self.opened_as, "--engine", plan.engine, "--precision", plan.precision]
        words += ["--threads", str(plan.threads or "default"), "--batch", str(batch)]
        words += ["--tolerance", f"{question.answer_tolerance:g}"] + ["--same-top1"] * question.same_top1
        if plan.transformations:
            words += ["--transform", ",".join(plan.transformations)]
        if self.inputs is not None:
            words += ["--inputs", self.inputs_file or INPUTS_FILE]
        if self.signature is not None:
            words += ["--signature", self.signature]
        if self.seed:
            words += ["--seed", str(self.seed)]
        return shlex.join(words)

    def _call(self, plan: Plan) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in plan.model_dump(exclude_defaults=True).items())
        example = "" if self.inputs is None else ", example=inputs"
        return f"from tfperf.engines import Plan, build; run = build(net, Plan({settings}){example})"


def read_subject(
    model: Any,
    inputs: Any,
    labels: Any,
    scratch: Path,
    *,
    signature: str | None = None,
    seed: int = 0,
    inputs_file: str | None = None,
    labels_file: str | None = None,
) -> Subject:
    """Look at a model.

    Args:
        model: what the command line takes, or a `keras.Model`, which is saved for other processes.
        inputs: arrays in the nest that the model is called with, or by the names of its inputs; None: random ones.
        labels: whole numbers, one array for the one output, or a dictionary by output; None: there are none.
        scratch: folder that stays as long as other processes open the model.
        signature, seed: as `open_model` takes them.
        inputs_file, labels_file: where the inputs and labels were read; None: a program gave them.

    Raises:
        ExportError: there is no such model, it cannot be traced, or its inputs have other names.
        EngineError: it takes or gives strings.
        ValueError: the model does not take these inputs, or these are no labels of its outputs.
        TypeError: neither a string nor a Keras model.
    """
    servable = open_model(model, signature=signature, seed=seed, example=inputs)
    if isinstance(model, str):
        origin, opened_as, graph_only = Origin(model, signature, seed), model, False
    else:
        origin, graph_only = _saved(model, servable, scratch)
        opened_as = f"{MODEL_FROM_PYTHON}{servable.name}"
    check_numbers(servable.signature)
    given = None if inputs is None else _in_order(inputs, servable.signature, by_name=isinstance(model, str))
    subject = Subject(
        servable, origin, opened_as, signature, seed, given, None, inputs_file, labels_file, graph_only=graph_only
    )
    if labels is None:
        return subject
    truth = _labels_in_order(labels, servable.signature)
    check_labels(truth, servable.signature, subject.rows)
    return subject._replace(labels=truth)


def as_graph(subject: Subject, scratch: Path) -> Subject:
    """The same net for processes that do not have its Python code: its graph, in float32."""
    return subject._replace(origin=_saved_graph(subject.servable, scratch), graph_only=True)


def _saved(model: keras.Model, servable: Servable, scratch: Path) -> tuple[Origin, bool]:
    """The model as a .keras file or, where Keras cannot write it, as its graph; and whether it is the latter."""
    file = scratch / f"{servable.name}.keras"
    try:
        model.save(file)
    except Exception:  # whatever the user's own classes raise
        return _saved_graph(servable, scratch), True
    return Origin(str(file)), False


def _saved_graph(servable: Servable, scratch: Path) -> Origin:
    folder = scratch / "graph" / servable.name
    folder.mkdir(parents=True)
    servable.save(folder)
    return Origin(str(folder))


def _in_order(inputs: Any, signature: Signature, by_name: bool) -> Arrays:
    """One array for each input.

    Args:
        by_name: whether a dictionary must name the inputs; else it may also be the nest that the model is called with.
    """
    names = [form.name for form in signature.inputs]
    if isinstance(inputs, Mapping) and (by_name or set(inputs) == set(names)):
        return in_order({name: np.asarray(array) for name, array in inputs.items()}, signature, "the inputs")
    given = tuple(np.asarray(array) for array in keras.tree.flatten(inputs))
    signature.check(given)
    if not all(array.size for array in given):
        raise ValueError("expected an example at least of every input. Received: none")
    return given


def _labels_in_order(labels: Any, signature: Signature) -> Arrays:
    names = [form.name for form in signature.outputs]
    if not isinstance(labels, Mapping):
        if len(names) > 1:
            raise ValueError(f"expected labels by the names of outputs ({', '.join(names)}). Received: one array")
        labels = {names[0]: labels}
    if unknown := [name for name in labels if name not in names]:
        raise ValueError(f"expected labels of the outputs {', '.join(names)}. Received: {unknown[0]}")
    return tuple(np.asarray(labels.get(name, np.empty(0, np.int64))) for name in names)
