"""How a model is trained: what is changed in it, and which loop feeds it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import Field, model_validator

from tfperf.measure import Environment
from tfperf.measure.value import Name, Value
from tfperf.system import thread_words

if TYPE_CHECKING:
    import keras

__all__ = ["CHANGES", "LOOPS", "SECONDS_PER_CALL", "VARIABLES", "TrainingChange", "TrainingLoop", "TrainingPlan"]


SECONDS_PER_CALL = 0.25
"""What the steps of a call take: long beside the turn of Python and the callbacks, short for whoever waits for them."""


class TrainingChange(NamedTuple):
    """Something that makes training steps of a model faster, and leaves what it learns as it is."""

    words: str
    apply: Callable[[Any, Any], object]
    """Takes a compiled model and a batch of its inputs, and changes the model in place."""
    why_not: Callable[[Any], str | None] = lambda _: None
    """Why it cannot be done with a model, or changes nothing there; None: it can."""
    code: str = ""
    """The line of a script that does it with `model` and a batch of `inputs`."""


def _use_half(model: "keras.Model", _: Any) -> None:
    from tfperf.training.precision import use_mixed_precision

    use_mixed_precision(model)


def _does_not_compute_half(model: "keras.Model") -> str | None:
    from tfperf.training.precision import layers_to_change

    here = Environment.here()
    if not here.instructions_for("bfloat16") and not here.accelerators:
        return "this processor has no instructions for bfloat16, and takes many times as long without"
    if own := {layer.dtype_policy.name for layer in model._flatten_layers()} - {"float32"}:
        return f"the model has a policy of its own already: {', '.join(sorted(own))}"
    changed = any(layer._trainable_variables for layer in layers_to_change(model))
    return None if changed else "no layer computes with weights before those that give the outputs, which stay float32"


def _fuse(model: "keras.Model", inputs: Any) -> None:
    from tfperf.training.fusing import fuse

    fuse(model, inputs)


def _has_no_faster_form(model: "keras.Model") -> str | None:
    from tfperf.training.fusing import FORMS, may_have_form

    found = any(may_have_form(layer) for layer in model._flatten_layers())
    return None if found else f"no layer is one of {', '.join(kind.__name__ for kind in FORMS)} that has a faster form"


def _optimize_fast(model: "keras.Model", _: Any) -> None:
    from tfperf.training.optimizers import fast_optimizer

    fast_optimizer(model.optimizer)


def _has_no_fast_optimizer(model: "keras.Model") -> str | None:
    from tfperf.training.optimizers import is_fast, why_not_fast

    return "the optimizer is fast already" if is_fast(model.optimizer) else why_not_fast(model.optimizer)


def _use_xla(model: "keras.Model", _: Any) -> None:
    model.jit_compile = True


def _has_layers_without_xla(model: "keras.Model") -> str | None:
    names = [layer.name for layer in model._flatten_layers() if not getattr(layer, "supports_jit", True)]
    return f"Keras says that XLA cannot compile the layers {', '.join(names)}" if names else None


CHANGES: dict[str, TrainingChange] = {
    "mixed_bfloat16": TrainingChange("mixed_bfloat16", _use_half, _does_not_compute_half, "use_mixed_precision(model)"),
    "fuse": TrainingChange("fused layers", _fuse, _has_no_faster_form, "fuse(model, inputs)"),
    "fast_optimizer": TrainingChange(
        "fast optimizer", _optimize_fast, _has_no_fast_optimizer, "fast_optimizer(model.optimizer)"
    ),
    "jit_compile": TrainingChange("XLA", _use_xla, _has_layers_without_xla, "model.jit_compile = True"),
}
"""Name -> what it is, in the order in which they are applied: layers are measured in the type that they have then."""

VARIABLES: dict[str, Mapping[str, str]] = {
    "huge_pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "kept_primitives": {"TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE": "0"},
}
"""Name -> variables of the environment, which must be set before Python starts. glibc asks for huge pages; oneDNN keeps
what it has prepared for the gradients of kernels from step to step, which takes memory."""


class TrainingLoop(NamedTuple):
    """What feeds a model with batches."""

    words: str
    fit: Callable[..., Any]
    """Takes the model, the data and the arguments of `keras.Model.fit`."""
    takes_datasets: bool = True
    code: str = ""
    """The call in a script, with the names `model`, `x` and `y`, without its closing bracket."""
    in_place_of: tuple[str, ...] = ()
    """Names of CHANGES that mean nothing with it."""


def _fit(model: "keras.Model", data: Any, **options: Any) -> Any:
    if not isinstance(data, tuple):
        options.pop("batch_size", None)
        return model.fit(data, **options | {"shuffle": False})  # that is the data set's own
    names = ("x", "y", "sample_weight")
    return model.fit(**dict(zip(names, data, strict=False)), **options)


def _compiled_loop(model: "keras.Model", data: Any, **options: Any) -> Any:
    from tfperf.training import looping

    x, y, *weights = data
    return looping.fit(model, x, y, sample_weight=weights[0] if weights else None, **options)


def _xla_loop(model: "keras.Model", data: Any, **options: Any) -> Any:
    return _compiled_loop(model, data, jit_compile=True, **options)


LOOPS: dict[str, TrainingLoop] = {
    "fit": TrainingLoop("Keras's fit", _fit, code="model.fit(x, y"),
    "compiled": TrainingLoop("compiled loop", _compiled_loop, takes_datasets=False, code="fit(model, x, y"),
    "xla": TrainingLoop(
        "loop by XLA",
        _xla_loop,
        takes_datasets=False,
        code="fit(model, x, y, jit_compile=True",
        in_place_of=("jit_compile",),
    ),
}


class TrainingPlan(Value):
    """How a model is trained on a machine. Immutable."""

    changes: tuple[Name, ...] = Field(default=(), description="names of CHANGES, in their order")
    loop: Name = Field(default="fit", description="a name of LOOPS")
    steps_per_execution: int = Field(default=1, ge=1, description="of Keras's fit")
    threads: int | None = Field(default=None, ge=1, description="None: as many as TensorFlow takes by itself")
    variables: tuple[Name, ...] = Field(default=(), description="names of VARIABLES, in their order")
    batch_size: int | None = Field(default=None, ge=1, description="None: that of the data set")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for given, known in ((self.changes, CHANGES), (self.variables, VARIABLES), ((self.loop,), LOOPS)):
            if list(given) != [one for one in known if one in given]:
                raise ValueError(f"expected each once, in the order {', '.join(known)}. Received: {', '.join(given)}")
        return self

    @property
    def environment(self) -> dict[str, str]:
        """The variables that Python must be started with."""
        return {name: value for one in self.variables for name, value in VARIABLES[one].items()}

    def apply(self, model: "keras.Model", inputs: Any) -> "keras.Model":
        """Change a compiled model as the plan says, in place; it may have been trained before.

        Threads and variables of the environment are not applied: a process that has started keeps its own.

        Args:
            model: built and compiled.
            inputs: a batch, as training has it.

        Returns:
            The same model.

        Raises:
            ValueError: a change cannot be made with this model; says why.
        """
        from tfperf.training.looping import forget

        for name in self.changes:
            if why := CHANGES[name].why_not(model):
                raise ValueError(f"{CHANGES[name].words}: {why}")
            CHANGES[name].apply(model, inputs)
        model.steps_per_execution = self.steps_per_execution
        forget(model)
        return model

    def fit(self, model: "keras.Model", data: Any, **options: Any) -> "keras.callbacks.History":
        """Train a model that `apply` has changed, by the plan's loop.

        Args:
            data: (x, y) or (x, y, sample weights), arrays or structures of them with (examples, ...); or a
                `tf.data.Dataset` of batches, which loops of tfperf do not take.
            options: of `keras.Model.fit`; `batch_size` is the plan's.
        """
        if self.batch_size is not None:
            options["batch_size"] = self.batch_size
        return LOOPS[self.loop].fit(model, data, **options)

    @property
    def settings(self) -> tuple[str, ...]:
        """What it says, in words: ("mixed_bfloat16", "compiled loop", "batch 64")."""
        parts = [CHANGES[one].words for one in self.changes]
        parts.append(LOOPS[self.loop].words)
        if self.steps_per_execution > 1:
            parts.append(f"{self.steps_per_execution} steps per execution")
        parts += [one.replace("_", " ") for one in self.variables]
        if self.threads is not None:
            parts.append(thread_words(self.threads))
        if self.batch_size is not None:
            parts.append(f"batch {self.batch_size}")
        return tuple(parts)

    def __str__(self) -> str:
        return ", ".join(self.settings)
