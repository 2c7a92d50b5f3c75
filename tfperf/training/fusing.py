"""`fuse`: the layers of a model that have a faster form on this machine get it."""

import contextlib
import functools
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf
from pydantic import Field

from tfperf.errors import shortened
from tfperf.hardware.machine import machine_cache
from tfperf.measure import compare
from tfperf.measure.comparison import FEWEST_ROUNDS, Ratio, Verdict
from tfperf.measure.value import Value
from tfperf.measure.words import format_ratio, format_seconds
from tfperf.training import looping, xla_function
from tfperf.training.activation import CompiledActivation, CompiledReLU
from tfperf.training.attention import MergedAttention
from tfperf.training.batch_norm import FusedBatchNormalization
from tfperf.training.convolution import SwappedConv1D, SwappedConv2D
from tfperf.training.dense import FlattenedDense
from tfperf.training.depthwise import CompiledDepthwiseConv1D, CompiledDepthwiseConv2D
from tfperf.training.dropout import CompiledDropout
from tfperf.training.layer_norm import CompiledLayerNormalization
from tfperf.training.recurrent import CompiledGRU, CompiledLSTM
from tfperf.training.saved_form import form_name, in_training, plain_class, with_class
from tfperf.training.separable import CompiledSeparableConv1D, CompiledSeparableConv2D

__all__ = ["Fusion", "Swap", "fuse", "may_have_form", "unfuse"]

FORMS: dict[type, type] = {
    keras.layers.Activation: CompiledActivation,
    keras.layers.BatchNormalization: FusedBatchNormalization,
    keras.layers.Conv1D: SwappedConv1D,
    keras.layers.Conv2D: SwappedConv2D,
    keras.layers.Dense: FlattenedDense,
    keras.layers.DepthwiseConv1D: CompiledDepthwiseConv1D,
    keras.layers.DepthwiseConv2D: CompiledDepthwiseConv2D,
    keras.layers.Dropout: CompiledDropout,
    keras.layers.GRU: CompiledGRU,
    keras.layers.LSTM: CompiledLSTM,
    keras.layers.LayerNormalization: CompiledLayerNormalization,
    keras.layers.MultiHeadAttention: MergedAttention,
    keras.layers.ReLU: CompiledReLU,
    keras.layers.SeparableConv1D: CompiledSeparableConv1D,
    keras.layers.SeparableConv2D: CompiledSeparableConv2D,
}
"""Keras's class -> the faster form of its layers. Of these classes themselves: a subclass may do anything."""

UNDECIDED = (Verdict.TOO_NOISY, Verdict.TOO_FEW)
"""Verdicts of a measurement that is made again when it is asked for again: a quieter minute may tell."""

TIME_LIMIT = 2.0
"""Seconds for the two forms of a layer together; what has the same shapes is measured once."""

MARGIN = 0.03
"""Share of a layer's time by which a form must be faster to be taken."""

BATCH_SIZE = 32
"""Keras's own, for arrays."""

Progress = Callable[[str], None]


class LayerTimes(Value):
    """What a layer takes in Keras's form and in the faster one, forward and backward in training."""

    format: Literal["tfperf layer times"] = "tfperf layer times"
    version: Literal[15] = 15
    plain_seconds: float = Field(gt=0)
    fast_seconds: float = Field(gt=0)
    ratio: Ratio

    @property
    def pays(self) -> bool:
        """Whether the faster form is faster, beyond the interval of the ratio."""
        return self.ratio.verdict is Verdict.FASTER


class Swap(NamedTuple):
    """A layer that has a faster form, and what became of it."""

    layer: str
    form: str
    """Name of the class that was tried."""
    shape: tuple[int | None, ...]
    """The shape of the layer's input: (batch, ...)."""
    calls: int
    """How often the model calls the layer."""
    times: LayerTimes | None
    """None: it was not measured."""
    why_not: str = ""
    """Why it could not be measured, and stays as it is; empty: it could, or was not to be."""

    @property
    def kept(self) -> bool:
        """Whether the layer has the faster form now."""
        return not self.why_not and (self.times is None or self.times.pays)

    @property
    def saves_seconds(self) -> float:
        """What a training step is expected to take less; 0 where nothing was measured or changed."""
        if self.times is None or not self.kept:
            return 0.0
        return self.calls * (self.times.plain_seconds - self.times.fast_seconds)

    def __str__(self) -> str:
        what = f"{self.layer} {self.shape}: {self.form if self.kept else 'stays as it is'}"
        if self.times is None:
            return f"{what}, as it cannot be measured: {self.why_not}" if self.why_not else what
        seconds = f"{format_seconds(self.times.plain_seconds)} -> {format_seconds(self.times.fast_seconds)}"
        return f"{what}, {seconds}, {format_ratio(self.times.ratio.interval)}"


class Fusion(NamedTuple):
    """What `fuse` changed in a model.

    Attributes:
        model: the model that was given.
        swaps: a line for each layer that has a faster form, in the model's order.
    """

    model: keras.Model
    swaps: tuple[Swap, ...]

    @property
    def saves_seconds(self) -> float:
        """What a training step is expected to take less, the layers' gains added up."""
        return sum(one.saves_seconds for one in self.swaps)

    def __str__(self) -> str:
        first = f"{sum(one.kept for one in self.swaps)} of {len(self.swaps)} layers with a faster form have it now"
        if self.saves_seconds:
            first += f"; a step is expected to take {format_seconds(self.saves_seconds)} less"
        return "\n".join([first, *map(str, self.swaps)])


class _Call(NamedTuple):
    """A layer, and the input that the model gives it."""

    layer: Any
    shape: tuple[int | None, ...]
    dtype: str
    training: bool
    copies: int
    """How often the layer takes it: attention of a sequence with itself takes it as query and as value."""

    @property
    def shapes(self) -> list[tuple[int | None, ...]]:
        """What `build` and `compute_output_shape` of the layer take."""
        return [self.shape] * self.copies


def fuse(
    model: keras.Model,
    inputs: Any = None,
    *,
    batch_size: int = BATCH_SIZE,
    measure: bool = True,
    time_limit: float = TIME_LIMIT,
    on_progress: Progress = lambda _: None,
) -> Fusion:
    """Give the layers of a model the form that trains fastest on this machine, in place.

    Each layer that has a faster form, see `tfperf.training`, is measured in both, alone, forward and backward, with the
    shapes and the type that it has in this model, and takes the faster one where that is faster beyond doubt. What was
    measured is kept for the next time. A convolution in groups is not measured on a CPU: its form is faster by far.
    Weights, outputs, gradients and the saved form stay Keras's; a model that was
    compiled stays so. Shared layers are measured by their first call. A layer that Keras cannot make anew from its
    settings stays as it is, as one whose activation is a lambda.

    Args:
        model: functional, sequential or subclassed, built, under any dtype policy.
        inputs: a batch as training has it, arrays or tensors as the model takes them; None: of the shapes that the
            model declares.
        batch_size: where there are no `inputs`.
        measure: False: every layer that has a faster form gets it, whether it is faster here or not.
        time_limit: seconds of measuring for each layer of other shapes, unless 8 rounds take longer.
        on_progress: is told which layer is measured.

    Returns:
        What was changed, layer by layer, and what is expected of it.

    Raises:
        ValueError: the model is not built, or does not say what shape its inputs have: give `inputs`.
    """
    swaps, calls = [], _calls_of(model, _specs_of(model, inputs, batch_size))
    measured: dict[str, LayerTimes] = {}
    for layer, seen in calls.items():
        form = FORMS[type(layer)]
        on_progress(f"{layer.name}: {form_name(form)} {seen[0].shape}")
        times, why_not = None, ""
        try:
            waits = measure and not getattr(form, "always_pays", lambda _: False)(layer)
            times = _times(seen[0], form, time_limit, measured) if waits else None
        except _NoCopyError as error:
            why_not = str(error)
        swaps.append(Swap(layer.name, form_name(form), seen[0].shape, len(seen), times, why_not))
    for layer, swap in zip(calls, swaps, strict=True):
        if swap.kept:
            with_class(layer, FORMS[type(layer)])
    looping.forget(model)
    return Fusion(model, tuple(swaps))


def unfuse(model: keras.Model) -> None:
    """Give the layers of a model Keras's form again."""
    for layer in model._flatten_layers():
        if type(layer) in FORMS.values():
            with_class(layer, plain_class(layer))
    looping.forget(model)


def _specs_of(model: keras.Model, inputs: Any, batch_size: int) -> Any:
    if inputs is not None:
        arrays = keras.tree.map_structure(tf.convert_to_tensor, inputs)
        return keras.tree.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), arrays)
    declared = getattr(model, "_inputs_struct", None)
    if isinstance(model, keras.Sequential) and model.inputs:
        (declared,) = model.inputs
    if declared is None:
        raise ValueError(f"expected a batch of inputs, as the model '{model.name}' declares no shapes")

    def spec(one: Any) -> tf.TensorSpec:
        if None in one.shape[1:]:
            raise ValueError(f"expected a batch of inputs, as the model '{model.name}' declares the shape {one.shape}")
        return tf.TensorSpec([batch_size, *one.shape[1:]], one.dtype)

    return keras.tree.map_structure(spec, declared)


def _calls_of(model: keras.Model, specs: Any) -> dict[Any, list[_Call]]:
    """The calls of layers that have a faster form, seen while the model is traced as training does.

    Left out are calls with an option that the form leaves to Keras, as scores that are asked for, and layers within one
    that has a form, as the dropout of attention.
    """
    calls: dict[Any, list[_Call]] = {}
    watched = [layer for layer in model._flatten_layers() if type(layer) in FORMS and "call" not in vars(layer)]

    def watching(layer: Any) -> Callable[..., Any]:
        own = layer.call
        taken: frozenset[str] = getattr(FORMS[type(layer)], "takes", frozenset())

        def call(*args: Any, **others: Any) -> Any:
            bound = inspect.signature(own).bind(*args, **others).arguments
            named = {name: value for name, value in bound.items() if name not in taken}
            given = [one for one in named.values() if tf.is_tensor(one)]
            options = [value for name, value in named.items() if name != "training" and not tf.is_tensor(value)]
            asked = any(value is not None and value is not False for value in options)
            if given and not asked and all(one is given[0] for one in given):
                training = bool(named.get("training", in_training(layer)))
                shape, dtype = tuple(given[0].shape), given[0].dtype.name
                calls.setdefault(layer, []).append(_Call(layer, shape, dtype, training, len(given)))
            return own(*args, **others)

        return call

    def trained(inputs: Any) -> Any:
        with tf.GradientTape():
            return model(inputs, training=True)

    try:
        for layer in watched:
            layer.__dict__["call"] = watching(layer)  # past Keras, which looks into what is assigned to a layer
        tf.function(trained).get_concrete_function(specs)
    finally:
        for layer in watched:
            layer.__dict__.pop("call", None)
    suit = {layer: seen for layer, seen in calls.items() if None not in seen[0].shape and _suits(layer, seen[0].shape)}
    within = {inner for layer in suit for inner in layer._flatten_layers(include_self=False)}
    return {layer: seen for layer, seen in suit.items() if layer not in within}


def may_have_form(layer: keras.Layer) -> bool:
    """Whether a layer of a built model may have a faster form, as far as the model declares its inputs."""
    if type(layer) not in FORMS:
        return False
    try:
        shape = tuple(layer.input.shape)
    except (AttributeError, ValueError):  # it is called several times, or by code
        return True
    return _suits(layer, (1, *shape[1:]))


def _suits(layer: Any, shape: tuple[int | None, ...]) -> bool:
    """Whether a layer's form computes otherwise than Keras's for inputs of this shape."""
    suits = getattr(FORMS[type(layer)], "suits", None)
    return suits is None or bool(suits(layer, shape))  # of the form, asked before the layer is one


def _times(call: _Call, form: type, time_limit: float, measured: dict[str, LayerTimes]) -> LayerTimes:
    """What a layer takes in both forms: measured now, unless a measurement that could tell them apart is kept.

    Args:
        measured: what was measured for other layers of the model, by name; a layer like one of them has its times.
    """
    config = {name: value for name, value in _config_of(call.layer).items() if name != "name"}
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    question = [form_name(form), config, call.shapes, call.dtype, call.training, call.layer.trainable, threads]
    question.append(xla_function.can_be_compiled())
    told = json.dumps(question, sort_keys=True, default=repr)
    name = f"layer-{hashlib.sha256(told.encode()).hexdigest()[:32]}"
    if name not in measured:
        cache = machine_cache(None, name, LayerTimes)
        earlier = cache.read()
        undecided = earlier is not None and earlier.ratio.verdict in UNDECIDED
        measured[name] = cache.get(lambda: _measured(call, form, time_limit), fresh=undecided)
    return measured[name]


class _NoCopyError(Exception):
    """Keras cannot make a layer anew from its settings; says why."""


def _config_of(layer: Any) -> dict[str, Any]:
    """The settings of a layer.

    Raises:
        _NoCopyError: something of the user's is among them that tells nothing of itself.
    """
    with _telling_why():
        return dict(layer.get_config())


def _copy_of(call: _Call) -> Any:
    """A layer with the same settings as the one that is called, built for the same inputs.

    Raises:
        _NoCopyError: something of the user's is among the settings that Keras does not know by its name.
    """
    with _telling_why():
        layer = type(call.layer).from_config(call.layer.get_config())
        layer.build(*call.shapes)
        return layer


@contextlib.contextmanager
def _telling_why() -> Iterator[None]:
    """Turn whatever an activation, initializer, regularizer or constraint of the user's raises into a line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Keras says of lambdas is for those who save
            yield
    except Exception as error:
        raise _NoCopyError(shortened(error, keep_end=True)) from error


def _measured(call: _Call, form: type, time_limit: float) -> LayerTimes:
    plain = type(call.layer)
    given = tf.cast(tf.random.stateless_normal(call.shape, [0, 1]), call.dtype)
    steps = {}
    for name, kind in (("plain", plain), ("fast", form)):
        layer = _copy_of(call)
        with_class(layer, kind)
        steps[name] = _training_step(layer, given, call)
    in_turns = functools.partial(compare, steps, margin=MARGIN, rest_after=FEWEST_ROUNDS, seed=0)
    comparison = in_turns(time_limit=time_limit)
    if comparison.ratio("plain", "fast").verdict is Verdict.TOO_FEW:  # they are long, and share the time
        slowest = max(one.median for one in comparison.measurements)
        comparison = in_turns(time_limit=2 * len(steps) * FEWEST_ROUNDS * slowest)
    return LayerTimes(
        plain_seconds=comparison["plain"].median,
        fast_seconds=comparison["fast"].median,
        ratio=comparison.ratio("plain", "fast"),
    )


def _training_step(layer: Any, given: Any, call: _Call) -> Callable[[], Any]:
    """A function that calls a layer and computes all gradients, from the same input each time."""

    def random(shape: Any) -> Any:
        return tf.cast(tf.random.stateless_normal(shape, [1, 0]), layer.compute_dtype)

    upstream = keras.tree.map_shape_structure(random, layer.compute_output_shape(*call.shapes))

    @tf.function  # type: ignore[untyped-decorator]
    def step(given: Any, upstream: Any) -> Any:
        sources = [given, *(variable.value for variable in layer.trainable_variables)]
        with tf.GradientTape() as tape:
            tape.watch(given)
            # A form may be for training alone, also of a layer that takes no such argument
            outputs = layer(*[given] * call.copies, training=call.training)
        return [outputs, *tape.gradient(outputs, sources, upstream)]

    return lambda: step(given, upstream)
