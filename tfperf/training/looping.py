"""`fit` as a compiled loop over examples that are in memory."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfperf.training.optimizers import innermost
from tfperf.training.plan import SECONDS_PER_CALL
from tfperf.training.within_xla import with_native_layers

__all__ = ["fit", "forget"]

LOOP = "_tfperf_loop"
"""Where a model keeps what it was compiled with and its loop, past Keras: a second `fit` traces nothing."""

TIMED_CALLS = 2
"""Single steps at the start: the first traces the model, the next tells how long a step takes."""


def fit(
    model: keras.Model,
    x: Any,
    y: Any,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validation_data: Any = None,
    shuffle: bool = True,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    seconds_per_call: float = SECONDS_PER_CALL,
    jit_compile: bool = False,
) -> keras.callbacks.History:
    """Train a compiled model as its own `fit` does, many steps for each call of TensorFlow.

    The examples lie in memory as tensors, and a loop within TensorFlow gathers batch after batch of them and trains:
    there is no iterator to wait for, and Python is called a few times a second. Losses, metrics, the last batch that is
    smaller, validation and what callbacks see at the end of an epoch are as in Keras. Callbacks for batches are called
    once for as many batches as take `seconds_per_call`, as Keras does with `steps_per_execution`.

    Args:
        model: compiled, with Keras's own `train_step`, under no strategy.
        x, y: arrays or tensors, or structures of them, with as many examples each: (examples, ...).
        batch_size, epochs, verbose, callbacks, validation_data, shuffle, sample_weight, initial_epoch: as in Keras.
        seconds_per_call: about what the steps of one call take together.
        jit_compile: have XLA compile the whole loop. Without it, XLA compiles each step by itself, where the model was
            compiled so. The loop has no cost of a step any more, which small nets gain from. A last batch that is
            smaller is compiled by itself. Every operation must be one that XLA has. Where there is a C++ compiler,
            pooling, convolutions, attention, LSTM and GRU, and where that is faster `Dense` layers are computed in C++.

    Returns:
        What Keras's `fit` returns: `history` has a list for each metric, a number for each epoch.

    Raises:
        ValueError: the model is not compiled, runs eagerly, trains under a strategy or has a `train_step` of its own:
            use `model.fit`; or the examples are not as many everywhere.
    """
    _check(model)
    data = _in_memory((x, y) if sample_weight is None else (x, y, sample_weight))
    count = _count(data)
    first = keras.tree.map_structure(lambda one: one[:batch_size], data)
    model._symbolic_build(data_batch=first)
    steps = -(-count // batch_size)
    shown = {"add_progbar": verbose != 0, "verbose": verbose, "epochs": epochs, "steps": steps}
    seen = keras.callbacks.CallbackList(list(callbacks), add_history=True, model=model, **shown)
    loop, chunk = _loop_of(model, jit_compile), _Chunk(seconds_per_call)
    smaller = jit_compile and count % batch_size  # examples of a last batch that needs a loop of its own
    validation = None if validation_data is None else _by_name(validation_data)
    model.stop_training = False
    seen.on_train_begin()
    logs: Mapping[str, Any] | None = None
    for epoch in range(model._initial_epoch or initial_epoch, epochs):  # BackupAndRestore sets it
        model.reset_metrics()
        seen.on_epoch_begin(epoch)
        order = tf.range(count, dtype=tf.int64)
        order = tf.random.shuffle(order) if shuffle else order
        begin = 0
        while begin < steps:
            end = min(steps, begin + chunk.length)
            if smaller and begin < steps - 1:
                end = min(steps - 1, end)
            by_itself = smaller and begin == steps - 1
            size = smaller if by_itself else batch_size
            bounds = [tf.constant(one, tf.int64) for one in (begin * batch_size, min(count, end * batch_size))]
            seen.on_train_batch_begin(begin)
            with contextlib.nullcontext() if by_itself else chunk.timed(end - begin):  # the first of these compiles
                batch_logs = loop(data, order, *bounds, size if jit_compile else tf.constant(size, tf.int64))
            seen.on_train_batch_end(end - 1, batch_logs)
            begin = end
            if model.stop_training:  # after a call, as in Keras, even where it was set before the first
                break
        logs = dict(model.get_metrics_result())
        if validation is not None:
            found = model.evaluate(**validation, batch_size=batch_size, verbose=0, callbacks=seen, return_dict=True)
            logs |= {f"val_{name}": value for name, value in found.items()}
        seen.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    seen.on_train_end(logs)
    return model.history


def forget(model: keras.Model) -> None:
    """Have a model in which something has changed trace anew what trains, evaluates and predicts, Keras's and `fit`."""
    vars(model).pop(LOOP, None)
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


class _Chunk:
    """How many steps a call makes: one, until it is known how long that takes.

    Attributes:
        length: steps of the next call.
    """

    def __init__(self, seconds: float) -> None:
        self._wanted, self._calls, self.length = seconds, 0, 1

    @contextlib.contextmanager
    def timed(self, steps: int) -> Iterator[None]:
        """Learn how long a step takes from a call of so many."""
        began = time.perf_counter()
        yield
        seconds = (time.perf_counter() - began) / steps
        self._calls += 1
        if self._calls >= TIMED_CALLS:
            self.length = max(1, round(self._wanted / seconds))


def _loop_of(model: keras.Model, jit_compile: bool) -> Any:
    """The loop over the examples from one place of the order to another, by so many."""
    compiled = _traced_with(model, jit_compile)
    known, loop = vars(model).get(LOOP, (None, None))
    if known != compiled:
        alone = model.jit_compile and not jit_compile
        step = tf.function(model.train_step, jit_compile=True) if alone else model.train_step

        @tf.function(reduce_retracing=not jit_compile, autograph=False, jit_compile=jit_compile or None)  # type: ignore[untyped-decorator]
        def loop(data: Any, order: Any, begin: Any, end: Any, size: Any) -> Any:
            def body(place: Any) -> list[Any]:
                batch = tf.slice(order, [place], [size]) if jit_compile else order[place : place + size]
                with with_native_layers(model) if jit_compile else contextlib.nullcontext():
                    step(keras.tree.map_structure(lambda one: tf.gather(one, batch), data))
                return [place + tf.cast(size, place.dtype)]

            tf.while_loop(lambda place: place < end, body, [begin], parallel_iterations=1)
            return model.get_metrics_result()

        vars(model)[LOOP] = compiled, loop
    return loop


def _traced_with(model: keras.Model, jit_compile: bool) -> tuple[Any, ...]:
    """What a loop is traced with, and must be traced anew for where it is another."""
    optimizer = innermost(model.optimizer)
    compiled = (model._compile_loss, model._compile_metrics, model._loss_tracker)  # `compile` makes the last anew
    return (*compiled, model.optimizer, optimizer, type(optimizer), bool(model.jit_compile), jit_compile)


def _check(model: keras.Model) -> None:
    instead = "use model.fit for this one"
    if not model.compiled:
        raise ValueError("expected a compiled model; call model.compile(optimizer, loss) first")
    if model.run_eagerly:
        raise ValueError(f"expected a model that does not run eagerly; {instead}")
    if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
        raise ValueError(f"expected a model under no strategy; {instead}")
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(f"expected Keras's own train_step. Received: that of {type(model).__name__}; {instead}")


def _in_memory(data: Any) -> Any:
    """Tensors of the arrays, floating-point ones in Keras's float type, as its own `fit` has them."""

    def tensor(one: Any) -> Any:
        made = tf.convert_to_tensor(one)
        return tf.cast(made, keras.config.floatx()) if made.dtype.is_floating else made

    return keras.tree.map_structure(tensor, data)


def _by_name(data: Any) -> dict[str, Any]:
    """The arguments of `evaluate` that `validation_data` means: (x, y), (x, y, sample weights) or a data set."""
    return dict(zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(data), strict=True))


def _count(data: Any) -> int:
    counts = {int(one.shape[0]) for one in keras.tree.flatten(data)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"expected as many examples everywhere. Received: {', '.join(map(str, sorted(counts)))}")
    return counts.pop()
