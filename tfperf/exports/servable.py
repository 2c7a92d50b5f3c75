"""A net, or a SavedModel, as one function from named tensors to named tensors: what exports and engines begin with."""

import keyword
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.export.export_utils import get_input_signature  # what Model.export asks; it has no public name
from numpy.typing import NDArray

from tfperf.errors import EngineError, ExportError, shortened
from tfperf.exports.batch_norm import BatchNorms, Calls, calling, find_batch_norms, fold, fuse
from tfperf.exports.graphs import with_constants
from tfperf.exports.keras_nets import arguments_from, computing_in, in_keras_form, specs_of_call
from tfperf.exports.signature import SIGNATURE_NAME, Signature, TensorForm, flat_arrays

__all__ = ["Servable", "file_name"]

MOST_BYTES = 150
"""The longest name of a net: with what stands around it in a file's name, less than the 255 that Linux allows."""

MOST_LETTERS = 100
"""Letters in the name of a net, an input or an output; measurements and facts are called by it and more."""

Function = Callable[..., dict[str, tf.Tensor]]


class Servable:
    """What can be exported and run by an engine: a signature, and a function that keeps to it.

    Attributes:
        name: of the net, as a file can be called; that of its folder under saved_models/.
        signature: the named inputs and outputs.
        net: the Keras model; None: it came from a SavedModel, or more than a net is in it.
        pack: from tensors, in the order of the signature, to the positional arguments that the net's call takes.
        call: from tensors, by keyword, to a dictionary of tensors. Called eagerly it runs eagerly (a SavedModel: its
            graph); in a tf.function it is traced. In float32 and by the layers of Keras, whatever its net's policy is,
            and even where `tfperf.training` has given its layers a faster form.
        changes: transformation -> what it did to make this, in words; see `variant`.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        call: Function,
        *,
        keeps: Sequence[Any],
        net: Any = None,
        pack: Callable[[Sequence[Any]], list[Any]] = list,
        changes: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Use one of the class methods instead.

        Args:
            keeps: what owns the variables and lookup tables that `call` uses.
            renamed: outputs as the net itself names them -> their names in the signature, where these are others.
        """
        self.changes, self._renamed = dict(changes or {}), dict(renamed or {})
        self.name, self.signature, self.call, self.net, self.pack = file_name(name), signature, call, net, pack
        self._keeps = keeps

    @classmethod
    def from_net(
        cls, net: keras.Model, example: Any = None, name: str | None = None, called_with: Sequence[Any] = ()
    ) -> "Servable":
        """Take a Keras model: functional, sequential, or a subclass.

        Args:
            net: any number of inputs and outputs, in lists, tuples and dictionaries.
            example: what the net is called with, with a batch in front: for a subclass whose inputs are not all
                of the type that Keras assumes (float32), or that was never called. For a call with several
                arguments a tuple of them, or a dictionary by their names.
            name: None: the net's.
            called_with: positional arguments of a subclass's first call, as nests of `keras.InputSpec`, where known.

        Raises:
            ExportError: the net is not on TensorFlow, has never been called, or cannot be traced.
            TypeError: not a Keras model.
        """
        if not isinstance(net, keras.Model):
            raise TypeError(f"expected a keras.Model. Received: {type(net).__name__}")
        if keras.backend.backend() != "tensorflow":
            raise ExportError(f"expected Keras on TensorFlow, it is on {keras.backend.backend()}; set KERAS_BACKEND")
        places = _places(net, example, called_with)
        leaves = flat_arrays(places, _input_names(places))
        names = _distinct([_as_argument(leaf_name) for leaf_name, _ in leaves])
        inputs = tuple(
            TensorForm(name=one, shape=(None, *map(_size, leaf.shape[1:])), dtype=tf.as_dtype(leaf.dtype).name)
            for one, (_, leaf) in zip(names, leaves, strict=True)
        )

        def pack(tensors: Sequence[Any]) -> list[Any]:
            return list(keras.tree.pack_sequence_as(places, list(tensors)))

        call = _call_of(net, inputs, pack, "float32")
        try:
            traced = tf.function(call).get_concrete_function(**{form.name: _spec(form, None) for form in inputs})
        except Exception as error:
            why, tried = shortened(error, keep_end=True), "; ".join(map(str, inputs))  # the cause comes last
            raise ExportError(
                f"net '{file_name(net.name)}' cannot be traced with {tried}: {why}. "
                "If its inputs are others, give example inputs"
            ) from error
        signature = Signature(inputs=inputs, outputs=_outputs(traced))
        return cls(name or net.name, signature, call, keeps=[net], net=net, pack=pack)

    @classmethod
    def from_saved_model(cls, folder: Path, signature: str = SIGNATURE_NAME, name: str | None = None) -> "Servable":
        """Take one signature of a SavedModel.

        Raises:
            ExportError: the folder holds no SavedModel that TensorFlow can load, or has no such signature.
        """
        try:
            loaded = tf.saved_model.load(str(folder))
        except Exception as error:
            raise ExportError(f"expected a SavedModel in {folder}: {shortened(error)}") from error
        if signature not in loaded.signatures:
            known = ", ".join(loaded.signatures) or "none"
            raise ExportError(f"expected one of the signatures of {folder} ({known}). Received: {signature}")
        function = loaded.signatures[signature]
        try:
            inputs = tuple(
                TensorForm(name=key, shape=tuple(spec.shape), dtype=spec.dtype.name)
                for key, spec in function.structured_input_signature[1].items()
            )
            outputs = _outputs(function)
        except ValueError as error:  # a shape of unknown rank, or a name that is no printable line
            raise ExportError(f"expected named tensors in the signature of {folder}: {shortened(error)}") from error

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            given = {form.name: tf.convert_to_tensor(tensors[form.name], form.dtype) for form in inputs}
            answers: dict[str, tf.Tensor] = function(**given)
            return answers

        return cls(name or folder.parent.name, Signature(inputs=inputs, outputs=outputs), call, keeps=[loaded])

    def named_as(self, signature: Signature) -> "Servable":
        """This, with the names of another signature: Keras numbers what has none, differently in each process.

        Raises:
            ExportError: the inputs or outputs differ in more than their names.
        """
        if signature == self.signature:
            return self
        if _forms(signature) != _forms(self.signature):
            raise ExportError(f"expected net '{self.name}' with {signature}. Received: one with {self.signature}")
        inputs = list(zip(signature.inputs, self.signature.inputs, strict=True))
        renamed = {ours.name: new.name for new, ours in zip(signature.outputs, self.signature.outputs, strict=True)}

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            answers = self.call(**{ours.name: tensors[new.name] for new, ours in inputs})
            return {renamed[key]: tensor for key, tensor in answers.items()}

        return Servable(self.name, signature, call, keeps=self._keeps, net=self.net, pack=self.pack, renamed=renamed)

    def after(self, preprocess: "Servable") -> "Servable":
        """This, fed by another: inputs go through `preprocess`, whose outputs are this one's inputs, in order.

        Raises:
            ExportError: the outputs of one are not the inputs of the other.
        """
        given, wanted = preprocess.signature.outputs, self.signature.inputs
        pairs = list(zip(given, wanted, strict=False))
        if len(given) != len(wanted) or any(a.dtype != b.dtype or not _fits(a.shape, b.shape) for a, b in pairs):
            told, asked = ("; ".join(map(str, forms)) for forms in (given, wanted))
            raise ExportError(f"expected the preprocessing to give {asked}. It gives: {told}")

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            made = preprocess.call(**tensors)
            return self.call(**{into.name: made[out.name] for out, into in pairs})

        signature = Signature(inputs=preprocess.signature.inputs, outputs=self.signature.outputs)
        return Servable(self.name, signature, call, keeps=[*self._keeps, *preprocess._keeps])

    def variant(self, precision: str = "float32", transformations: Sequence[str] = ()) -> "Servable":
        """This, computed in another way; inputs and outputs keep their types, and the net stays as it is.

        Args:
            precision: float32, bfloat16 or float16, in which the layers compute.
            transformations: of `tfperf.engines.TRANSFORMATIONS`; weights that they change are those of this moment.

        Raises:
            ExportError: what is asked for needs a Keras net, and this is none.
            EngineError: a transformation would change nothing, or cannot be done.
            ValueError: there is no such transformation.
        """
        if unknown := set(transformations) - {"fold_batch_norm", "fuse_batch_norm", "constant_weights"}:
            raise ValueError(f"expected transformations of tfperf. Received: {', '.join(sorted(unknown))}")
        of_net = [one for one in transformations if one != "constant_weights"]
        variant = self._of_net(precision, of_net) if of_net or precision != "float32" else self
        return variant._of_constants() if "constant_weights" in transformations else variant

    def batch_norms(self, precision: str = "float32") -> BatchNorms:
        """Which batch normalizations of the net can be folded, and which fused, while it computes in a precision.

        Raises:
            ExportError: this is not a Keras net.
        """
        if self.net is None:
            raise ExportError(f"expected a Keras net, for its batch normalizations; '{self.name}' is a graph")
        call = _call_of(self.net, self.signature.inputs, self.pack, precision)
        specs = {form.name: _spec(form, None) for form in self.signature.inputs}
        with in_keras_form(self.net):
            return find_batch_norms(self.net, lambda: tf.function(call).get_concrete_function(**specs))

    def with_softmax(self) -> "Servable":
        """This, with each output as probabilities over its last axis.

        Raises:
            ExportError: an output is not floating point, or has no axis of classes.
        """
        for form in self.signature.outputs:
            if not tf.as_dtype(form.dtype).is_floating or len(form.shape) < 2:
                raise ExportError(f"expected logits (batch, ..., classes) for the softmax. Received: the output {form}")

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            return {key: tf.nn.softmax(logits) for key, logits in self.call(**tensors).items()}

        return Servable(self.name, self.signature, call, keeps=self._keeps)

    def named(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Inputs in the order of the signature, by their names."""
        return {form.name: array for form, array in zip(self.signature.inputs, arrays, strict=True)}

    def batches(self, arrays: Sequence[NDArray[Any]], size: int = 1) -> Iterator[dict[str, NDArray[Any]]]:
        """Batches of a size, by the names of the inputs, out of a larger one in the order of the signature.

        The last one is filled up with the first rows.
        """
        return map(self.named, self.signature.batches(arrays, size))

    def reference(self, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """What it answers in float32, run eagerly (a SavedModel: as its graph), in the order of the signature.

        Raises:
            ValueError: the net does not take these inputs.
        """
        self.signature.check(arrays)
        answers = self.call(**{key: tf.constant(array) for key, array in self.named(arrays).items()})
        return tuple(answers[form.name].numpy() for form in self.signature.outputs)

    def trace(self, batch: int | None = None, **options: Any) -> Any:
        """A concrete function of it, which takes and gives named tensors.

        Args:
            batch: None: any.
            options: of tf.function.
        """
        specs = {form.name: _spec(form, batch) for form in self.signature.inputs}
        return tf.function(self.call, **options).get_concrete_function(**specs)

    def save(self, folder: Path, batch: int | None = None) -> None:
        """Write a SavedModel with the one signature "serving_default" into an empty folder.

        Args:
            batch: None: any.

        Raises:
            OSError: the folder is not writable, or the disk is full.
        """
        traced = self.trace(batch)
        module = tf.Module()
        # What the graph uses, and not the net, whose variables would be stored under a second name
        module.variables_of_graph = list(traced.variables)
        owned = (part for owner in self._keeps for part in tf.train.TrackableView(owner).descendants())
        module.tables = [part for part in owned if isinstance(part, tf.saved_model.experimental.TrackableResource)]
        tf.saved_model.save(module, str(folder), signatures={SIGNATURE_NAME: traced})

    def _of_net(self, precision: str, transformations: Sequence[str]) -> "Servable":
        """The net in a precision, its batch normalizations transformed."""
        if self.net is None and precision != "float32":
            raise ExportError(f"expected a Keras net to compute in {precision}; '{self.name}' is a graph in float32")
        changed, changes = self._transform_batch_norms(precision, transformations) if transformations else ({}, {})
        inside = _call_of(self.net, self.signature.inputs, self.pack, precision, changed)
        dtypes = {form.name: form.dtype for form in self.signature.outputs}

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            named = {self._renamed.get(key, key): tensor for key, tensor in inside(**tensors).items()}
            return {key: tf.cast(tensor, dtypes[key]) for key, tensor in named.items()}

        return Servable(self.name, self.signature, call, keeps=self._keeps, changes=changes)

    def _transform_batch_norms(self, precision: str, transformations: Sequence[str]) -> tuple[Calls, dict[str, str]]:
        """The calls of the layers that change, and what changes, in words."""
        found = self.batch_norms(precision)
        calls: dict[Any, Callable[..., Any]] = {}
        changes = {}
        if "fold_batch_norm" in transformations:
            if not found.foldable:
                raise EngineError(f"net '{self.name}' has no batch normalization that can be folded")
            with in_keras_form(self.net):  # the calls that the layers have now are part of the folded ones
                for layer, norm in found.foldable:
                    calls |= fold(layer, norm)
            changes["fold_batch_norm"] = f"{len(found.foldable)} of {found.total} batch normalizations folded"
        if "fuse_batch_norm" in transformations:
            left = [norm for norm in found.fusable if norm not in calls]
            if not left:
                words = " left" if calls else ""
                raise EngineError(f"net '{self.name}' has no batch normalization{words} that can be fused")
            for norm in left:
                calls |= fuse(norm)
            changes["fuse_batch_norm"] = f"{len(left)} of {found.total} batch normalizations fused"
        return calls, changes

    def _of_constants(self) -> "Servable":
        """This, its variables as constants."""
        traced = self.trace()
        if not traced.variables:
            raise EngineError(f"net '{self.name}' has no variables that can become constants")
        frozen, names = with_constants(traced, lower_control_flow=False), sorted(traced.structured_outputs)

        def call(**tensors: Any) -> dict[str, tf.Tensor]:
            answers = frozen(*(tensors[given.op.name] for given in frozen.inputs))
            return dict(zip(names, answers, strict=True))

        changes = {**self.changes, "constant_weights": f"{len(traced.variables)} variables became constants"}
        return Servable(self.name, self.signature, call, keeps=[], changes=changes)


def file_name(name: str) -> str:
    """The name of a net as one that a file can have, and a terminal can show."""
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in name)[:MOST_LETTERS]
    encoding = sys.getfilesystemencoding()
    short = plain.encode(encoding, "replace")[:MOST_BYTES].decode(encoding, "ignore").strip()
    return re.sub(r"^\.+", "_", short) or "net"


def _call_of(
    net: keras.Model, inputs: Sequence[TensorForm], pack: Any, precision: str, calls: Calls | None = None
) -> Function:
    """The net as a function of named tensors, with layers that do something else than their own calls."""

    def call(**tensors: Any) -> dict[str, tf.Tensor]:
        with computing_in(net, precision), in_keras_form(net), calling(calls or {}):
            answer = net(*pack([tensors[form.name] for form in inputs]), training=False)
        found = flat_arrays(answer, _output_names(net, answer))
        named = zip(_distinct([key for key, _ in found]), found, strict=True)
        return {key: tf.convert_to_tensor(tensor) for key, (_, tensor) in named}

    return call


def _places(net: keras.Model, example: Any, called_with: Sequence[Any]) -> list[Any]:
    """The positional arguments of the net's call: nests of what has a shape and a dtype."""
    if example is not None:
        arguments = keras.tree.map_structure(np.asarray, arguments_from(net, example))
        if not net.built or not getattr(net, "_called", True):
            net(*keras.tree.map_structure(tf.constant, arguments), training=False)
        return specs_of_call(net, tuple(arguments), {}) if len(arguments) > 1 else arguments
    if called_with and not getattr(net, "inputs", None):
        return list(called_with)
    try:
        return list(get_input_signature(net))
    except ValueError as error:
        raise ExportError(
            f"expected net '{file_name(net.name)}' to have been called once, or example inputs for it"
        ) from error


def _input_names(places: Any) -> list[str]:
    leaves = keras.tree.flatten(places)
    given = [getattr(leaf, "name", None) for leaf in leaves]
    return [name or ("inputs" if len(leaves) == 1 else f"inputs_{index}") for index, name in enumerate(given)]


def _output_names(net: keras.Model, answer: Any) -> list[str]:
    """Those of the layers that give them, where Keras knows."""
    number = len(keras.tree.flatten(answer))
    given = [net.layers[-1].name] if isinstance(net, keras.Sequential) else getattr(net, "output_names", ())
    return list(given) if len(given) == number else [f"output_{index}" for index in range(number)]


def _outputs(traced: Any) -> tuple[TensorForm, ...]:
    return tuple(
        TensorForm(name=key, shape=tuple(spec.shape), dtype=spec.dtype.name)
        for key, spec in traced.structured_outputs.items()
    )


def _as_argument(name: str) -> str:
    """The name of an input as one that a Python function's argument can have, as those of tf.function must."""
    return f"x_{name}" if name[:1].isdigit() or keyword.iskeyword(name) or name == "self" else name


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # it is called while nets are traced
def _distinct(names: Sequence[str]) -> list[str]:
    """The names with only what every format allows, numbered where two are alike; to TensorFlow, A and a are."""
    plain = [re.sub(r"\W", "_", name, flags=re.ASCII)[:MOST_LETTERS] for name in names]
    plain = [f"x{name}" if name.startswith("_") else name for name in plain]  # TensorFlow's begin with a letter
    while repeated := {name for name, count in Counter(map(str.lower, plain)).items() if count > 1}:
        plain = [f"{name}_{index}" if name.lower() in repeated else name for index, name in enumerate(plain)]
    return plain


def _fits(given: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    return len(given) == len(wanted) and all(a is None or b in (None, a) for a, b in zip(given, wanted, strict=True))


def _forms(signature: Signature) -> list[list[tuple[Any, str]]]:
    """Shapes and types, without names."""
    return [[(form.shape, form.dtype) for form in forms] for forms in (signature.inputs, signature.outputs)]


def _size(size: Any) -> int | None:
    return None if size is None else int(size)


def _spec(form: TensorForm, batch: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(form.with_batch(batch), form.dtype, name=form.name)
