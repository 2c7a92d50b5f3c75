"""A Keras 3 optimizer whose gradients are those of all ranks, and models that are saved with it."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.collectives import (
    Gradient,
    Reduction,
    all_finite,
    broadcast_variables,
    tensorflow_variable,
)
from tfperf.parallel.horovod.coordination import check_finished_alike, gather_digests
from tfperf.parallel.horovod.process import is_elastic

__all__ = [
    "Distributed",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "agree_on_finite",
    "distributed_part",
    "load_model",
]

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Optimizer
else:
    _Optimizer = object  # comes after, in the classes that DistributedOptimizer makes

_numbers = itertools.count()
"""Tells the gradients of one optimizer from those of the next on the wire; every rank makes them in the same order."""


def DistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: keras.optimizers.Optimizer,
    *,
    name: str | None = None,
    compression: Any = hvd.Compression.none,
    op: int = hvd.Average,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    average_aggregated_gradients: bool = True,
    local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer = (),
    scale_local_gradients: bool = True,
    skip_nonfinite: bool = True,
) -> keras.optimizers.Optimizer:
    """Make an optimizer apply the gradients of all ranks, for `model.fit` and for loops of your own.

    The optimizer is taken over: the same object is returned, as a subclass of what it was. The first time it is
    used, trainable weights and its own variables become those of rank 0. With `gradient_accumulation_steps` the
    gradients are exchanged once for each update. At the end of `fit` the ranks compare what they have.

    Args:
        optimizer: a Keras 3 optimizer; a LossScaleOptimizer too, and `compile` may put one around the result.
        name: of the exchanges, the same on each rank; None: a name of its own.
        compression: `hvd.Compression.none`, or `hvd.Compression.fp16` to send half the bytes.
        op: `hvd.Average`, `hvd.Sum` or, over MPI, `hvd.Adasum` of the gradients.
        sparse_as_dense: exchange gradients of embeddings as dense tensors. Sparse ones are gathered, and Horovod
            cannot gather from a rank that has run out of batches: it ends with an error of its own.
        gradient_predivide_factor: with `hvd.Average`, divide by this before the sum, and by size / this after it.
        groups: exchanges for each update; one is least work, more overlap with backpropagation. None: as many as
            have 4 MiB of gradients each.
        process_set: the ranks that take part.
        average_aggregated_gradients: False: gradients of the micro-steps of an update are summed, as Horovod
            does by default, and not averaged, as Keras does.
        local_layers: layers whose gradients stay on their rank, built or not; they are clipped apart from the others.
        scale_local_gradients: divide those by the number of ranks, as Horovod does.
        skip_nonfinite: an update whose gradient has a NaN or infinity on any rank is left out on all of them
            and counted in `optimizer.skipped_steps`.

    Returns:
        `optimizer`, with `reductions` and `skipped_steps` (integers) and `register_local_var(variable)`.

    Raises:
        HorovodError: `hvd.init()` was not called, Keras is not on TensorFlow, or Adasum was asked for without MPI.
        TypeError: not a Keras 3 optimizer, or one of several that go their own ways.
        ValueError: it is distributed already, or an option is out of its range.
    """
    _check_options(optimizer, op, gradient_predivide_factor, groups)
    agree_on_finite()
    inner = _innermost(optimizer)
    reduction = Reduction(
        name=name or f"tfperf_gradients_{next(_numbers)}",
        compression=compression,
        op=op,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
    )
    settings = {
        "_reduction": reduction,
        "_sum_micro_steps": not average_aggregated_gradients,
        "_scale_local": scale_local_gradients,
        "_skip_nonfinite": skip_nonfinite,
        # saved files name the class as it was, and load without Horovod
        "__module__": keras.optimizers.serialize(inner)["module"] or type(inner).__module__,
        "__qualname__": type(inner).__qualname__,
        "__doc__": type(inner).__doc__,
    }
    inner.__class__ = type(type(inner).__name__, (Distributed, type(inner)), settings)
    inner._start()
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else local_layers
    inner._local_layers.extend(layers)
    return optimizer


PartialDistributedOptimizer = DistributedOptimizer
"""Horovod's name for a DistributedOptimizer with `local_layers`."""


def distributed_part(optimizer: Any) -> "Distributed | None":
    """The distributed optimizer that this is or, as a LossScaleOptimizer, wraps; None: there is none."""
    inner = _innermost(optimizer)
    return inner if isinstance(inner, Distributed) else None


class Distributed(_Optimizer):
    """What a distributed optimizer does otherwise than the Keras optimizer it was; the base of both comes after it.

    Keras calls `_clip_gradients` once for each update with the gradients as they are applied, accumulated
    or not, and `_apply_weight_decay` and `_backend_update_step` after it. Clipping therefore sees
    what one process with the whole batch would.
    """

    _reduction: Reduction
    _sum_micro_steps: bool
    _scale_local: bool
    _skip_nonfinite: bool
    _finite: tf.Tensor | None
    _registered: set[Any]
    _local_layers: list[keras.layers.Layer]

    def __init__(self, **config: Any) -> None:
        """Make another one like this from its config, as `from_config` does."""
        super().__init__(**config)
        self._start()

    def _start(self) -> None:
        # Past Keras's tracking of variables: what is saved stays what the plain optimizer saves.
        with tf.init_scope():
            counters = {name: tf.Variable(0, dtype=tf.int64, trainable=False) for name in ("reduced", "skipped")}
        self.__dict__.update(_counters=counters, _registered=set(), _local_layers=[])
        self.__dict__.update(_equal_start=False, _has_gradients=False)

    @property
    def reductions(self) -> int:
        """How often the gradients of all ranks were exchanged."""
        return int(self._counters["reduced"])

    @property
    def skipped_steps(self) -> int:
        """How many updates all ranks left out together because a gradient was not finite on one of them."""
        return int(self._counters["skipped"])

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable on its rank: it is not exchanged."""
        self._registered.add(self._var_key(variable))

    @property
    def _local(self) -> set[Any]:
        """Keys of the variables that stay on their rank; a layer may be built after the optimizer was made."""
        return self._registered | {self._var_key(own) for layer in self._local_layers for own in layer.variables}

    def shared(self, variables: Iterable[Any]) -> list[Any]:
        """Those of the variables that are equal on all ranks: all but the local ones and their momenta."""
        apart = self._local.union(map(self._var_key, self._local_state()))
        return [variable for variable in variables if self._var_key(variable) not in apart]

    def _local_state(self) -> Iterator[Any]:
        """This optimizer's own variables that belong to local ones, such as their momenta.

        Keras's optimizers keep them in lists, in the order of the trainable variables.
        """
        own = {id(variable) for variable in self.variables}
        local = [number for number, v in enumerate(self._trainable_variables) if self._var_key(v) in self._local]
        for name, states in vars(self).items():
            if name != "_variables" and isinstance(states, list) and len(states) == len(self._trainable_variables):
                yield from (states[number] for number in local if id(states[number]) in own)

    def shared_state(self) -> list[Any]:
        """Those of this optimizer's own variables that are equal on all ranks between updates."""
        if self._local:
            return []  # momenta of local variables differ, and not every optimizer tells which those are
        apart = {id(v) for v in getattr(self, "_accumulated_gradients", ())}
        return [variable for variable in self.variables if id(variable) not in apart]

    def start_equal(self, root_rank: int = 0) -> None:
        """Make trainable weights and this optimizer's variables those of a rank. Done by itself before the first step.

        Raises:
            ValueError: the optimizer is not built yet.
        """
        if not self.built:
            raise ValueError("expected a built optimizer; call optimizer.build(model.trainable_variables) first")
        variables = self.shared([*self._trainable_variables, *self.variables])
        broadcast_variables(variables, root_rank, self._reduction.process_set)
        self.keep_start()

    def keep_start(self) -> None:
        """Leave the start to the caller, who has made all ranks equal."""
        self.__dict__.update(_equal_start=True)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables, equal on all ranks."""
        super().build(variables)
        self._start_equal_once()

    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables by the gradients of all ranks.

        Raises:
            HorovodError: the step is to be compiled by XLA for a CPU, for which Horovod has no kernels.
        """
        if _is_compiled_for_cpu():
            raise HorovodError(
                "expected compile(jit_compile=False): Horovod's exchanges have no XLA kernels on a CPU, received True"
            )
        self.__dict__.update(_has_gradients=not tf.inside_function())
        if self.built:
            self._start_equal_once()
        super().apply(grads, trainable_variables)

    def _start_equal_once(self) -> None:
        """Under tf.function this is called while the first step is traced, so before any gradient is computed.

        A trace that creates variables is followed by another one, when they have their values.
        """
        if self._equal_start:
            return
        if is_elastic():  # workers that join late have their first step when others do not
            self.keep_start()
            return
        with tf.init_scope():
            weights = [tensorflow_variable(v) for v in [*self._trainable_variables, *self.variables]]
            if all(tf.raw_ops.VarIsInitializedOp(resource=weight.handle) for weight in weights):
                if self._has_gradients and self._is_unequal():
                    warnings.warn(
                        "ranks had different weights as the first gradient was computed; they are those of rank 0 "
                        "from now on: call hvd.broadcast_variables(model.variables) before the first step",
                        stacklevel=2,
                    )
                self.start_equal()

    def _is_unequal(self) -> bool:
        if self._reduction.process_set.size() != hvd.size():
            return False
        first, *others = gather_digests(self.shared(self._trainable_variables)).values()
        return any(other != first for other in others)

    def _backend_apply_gradients(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any]) -> None:
        """Wait for a gradient first: in a step that finds no more data what waits for none is done all the same."""
        self.__dict__.update(_current=list(trainable_variables))
        last = grads[-1].values if isinstance(grads[-1], tf.IndexedSlices) else grads[-1]
        with tf.control_dependencies([last]):  # the first that there is: backpropagation begins with the last layer
            tensorflow_variable(self._iterations).read_value()  # which Keras counts up after this
            super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Gradient]) -> list[Gradient]:
        reduced = self._exchange(grads)
        self.__dict__.update(_finite=self._finite_on_all_ranks(reduced) if self._skip_nonfinite else None)
        clip = super()._clip_gradients
        stays = self._are_local()
        parts = [
            [grad for grad, local in zip(reduced, stays, strict=True) if local == which] for which in (False, True)
        ]
        shared, own = (iter(clip(part) if part else ()) for part in parts)  # the norm of one is no matter of the other
        return [next(own) if local else next(shared) for local in stays]

    def _are_local(self) -> list[bool]:
        """Whether each gradient that is applied now stays on its rank."""
        return [self._var_key(variable) in self._local for variable in self._current]

    def _finite_on_all_ranks(self, grads: Sequence[Gradient]) -> tf.Tensor:
        """Whether no gradient on any rank holds NaN or infinity; those that were exchanged are the same on all."""
        finite = all_finite(grads)
        if not any(self._are_local()):
            return finite
        return self._reduction.sum(tf.cast(tf.logical_not(finite), tf.int32), "finite_local") == 0

    def _exchange(self, grads: Sequence[Gradient]) -> list[Gradient]:
        """The gradients of all ranks as one; local ones as they are, scaled."""
        self._counters["reduced"].assign_add(1)
        if self._sum_micro_steps and self.gradient_accumulation_steps:
            grads = [_times(grad, self.gradient_accumulation_steps) for grad in grads]  # Keras has averaged them
        stays = self._are_local()
        exchanged = iter(self._reduction([grad for grad, local in zip(grads, stays, strict=True) if not local]))
        scale = 1 / self._reduction.size() if self._scale_local else 1.0
        return [_times(grad, scale) if local else next(exchanged) for grad, local in zip(grads, stays, strict=True)]

    def finite_everywhere(self, finite: tf.Tensor) -> tf.Tensor:
        """Whether gradients are finite on all ranks, for a loss scale around this; where not, the step is counted.

        Args:
            finite: whether they are on this rank; a boolean scalar.
        """
        not_finite = self._reduction.sum(tf.cast(tf.logical_not(finite), tf.int32), "finite")
        skipped = tf.cast(not_finite > 0, tf.int64)
        self._counters["skipped"].assign_add(skipped)
        return skipped == 0

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        if self.weight_decay is not None:
            self._if_finite(lambda: super(Distributed, self)._apply_weight_decay(variables))

    def _backend_update_step(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any], rate: Any) -> None:
        update = super()._backend_update_step
        count = self._counters["skipped"].assign_add
        self._if_finite(lambda: update(grads, trainable_variables, rate), lambda: count(1))

    def _if_finite(self, then: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> None:
        if self._finite is None:
            then()
            return

        def run(branch: Callable[[], Any]) -> Callable[[], None]:
            return lambda: (branch(), None)[1]

        tf.cond(self._finite, run(then), run(otherwise))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """What `fit` calls at its end: the ranks compare their steps and weights.

        Raises:
            HorovodError: they differ; names the ranks.
        """
        super().finalize_variable_values(var_list)
        if self._reduction.process_set is hvd.global_process_set:
            check_finished_alike(int(tensorflow_variable(self._iterations)), self.shared(var_list))


def _innermost(optimizer: Any) -> Any:
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _check_options(optimizer: Any, op: int, factor: float, groups: int | None) -> None:
    if not hvd.is_initialized():
        raise HorovodError("expected hvd.init() before hvd.DistributedOptimizer; call it first thing")
    if keras.backend.backend() != "tensorflow":
        raise HorovodError(f"expected Keras on TensorFlow, it is on {keras.backend.backend()}; set KERAS_BACKEND")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"expected a Keras 3 optimizer (keras.optimizers), received {type(optimizer).__name__}")
    if isinstance(_innermost(optimizer), keras.optimizers.MultiOptimizer):
        raise TypeError(
            "expected one optimizer, received a MultiOptimizer, which applies its own without exchanging anything; "
            "use one for all layers"
        )
    if distributed_part(optimizer):
        raise ValueError("expected an optimizer that is not distributed yet; wrap it once")
    if op not in (hvd.Average, hvd.Sum, hvd.Adasum):
        raise ValueError(f"expected op to be hvd.Average, hvd.Sum or hvd.Adasum, received {op!r}")
    if op == hvd.Adasum and not hvd.mpi_enabled():
        raise HorovodError("expected Horovod over MPI for op=hvd.Adasum, it runs over Gloo; use op=hvd.Average")
    if factor != 1.0 and op != hvd.Average:
        raise ValueError("expected gradient_predivide_factor only with op=hvd.Average")
    if groups is not None and (not isinstance(groups, int) or groups < 1):
        raise ValueError(f"expected groups to be None or a whole number from 1 on, received {groups!r}")


def _is_compiled_for_cpu() -> bool:
    """Whether this is the trace of a function that XLA compiles, on a machine without a GPU."""
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph) and not tf.config.list_physical_devices("GPU")


def _times(grad: Gradient, factor: Any) -> Gradient:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_times(grad.values, factor), grad.indices, grad.dense_shape)
    return grad * tf.cast(factor, grad.dtype)


@functools.cache
def agree_on_finite() -> None:
    """Make each LossScaleOptimizer around a distributed optimizer ask all ranks. Others stay as they are.

    `model.compile` under mixed_float16 puts Keras's LossScaleOptimizer around the optimizer it is given. That looks at
    this rank's gradients alone and skips the step when they overflow, so that the others wait for its gradients for
    ever. Its public `check_finite` is therefore made to ask the optimizer inside, where that is distributed.
    """
    on_this_rank = keras.optimizers.LossScaleOptimizer.check_finite

    @functools.wraps(on_this_rank)
    def check_finite(self: Any, grads: Sequence[Any]) -> Any:
        finite = on_this_rank(self, grads)
        everywhere = getattr(self.inner_optimizer, "finite_everywhere", None)
        return everywhere(finite) if everywhere else finite

    keras.optimizers.LossScaleOptimizer.check_finite = check_finite


def load_model(
    filepath: str | Path, custom_objects: dict[str, Any] | None = None, safe_mode: bool = True, **options: Any
) -> keras.Model:
    """Read a `.keras` file and go on training it on all ranks: weights and optimizer state as they were saved.

    A file written by a distributed model names the plain optimizer, so `keras.models.load_model` reads it too,
    without Horovod, and then trains this rank alone.

    Args:
        filepath: the `.keras` file, readable on every rank.
        custom_objects: as in `keras.models.load_model`.
        safe_mode: as in `keras.models.load_model`: code in the file is not run.
        **options: of `DistributedOptimizer`; a file does not hold them.

    Raises:
        ValueError: the file holds no compiled optimizer.
    """
    model = keras.models.load_model(filepath, custom_objects=custom_objects, safe_mode=safe_mode)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"expected a compiled model in {filepath}, its optimizer is missing; compile it after loading")
    DistributedOptimizer(model.optimizer, **options)
    return model
