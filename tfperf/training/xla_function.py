"""Functions in C++ that XLA calls, for what neither TensorFlow nor XLA has good code on this processor."""

import ctypes
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tfperf.errors import EngineError, TfperfError, shortened
from tfperf.native.compiling import compile_once, find_compiler, tensorflow_folder
from tfperf.native.processor import flags_of_cpu, level_of_cpu

__all__ = ["TYPES", "call", "can_be_compiled", "compiled", "is_there"]

SOURCES = Path(__file__).parent / "native"

OPTIONS = (
    *("-std=c++17", "-w", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-fopenmp-simd", "-fno-trapping-math"),
)
"""Loops that say so are written for vectors; nothing else is computed otherwise than C++ has it. Nobody asks which
comparison met what is no number: where that is to be known, loops that compare have no vectors of AVX2."""

EXTENSIONS = {"avx512_bf16": "-mavx512bf16"}
"""Linux's name of what a processor may have beyond its level -> the option that makes use of it."""

MORE_OPTIONS = dict.fromkeys(("amx_convolution", "kernel_gradient", "matmul"), ("-mamx-tile", "-mamx-bf16"))
"""For sources that are loaded only on processors that have these."""

TYPES = {"float32": "f32", "bfloat16": "bf16"}
"""TensorFlow's names of the types that functions compute in -> MLIR's."""

ALL_TYPES = TYPES | {"uint8": "ui8", "uint64": "ui64"}
"""The same, of all their operands."""

MODULE_VERSION = 9
"""The version of XlaCallModule, TensorFlow's operation that takes a program of StableHLO."""


def can_be_compiled() -> bool:
    """Whether XLA could call functions of this room's: there is a C++ compiler, and no GPU."""
    try:
        return bool(find_compiler(".cc")) and not tf.config.list_logical_devices("GPU")
    except EngineError:
        return False


@functools.cache
def is_there(source: str) -> bool:
    """Whether XLA can call the functions of a source here, which is compiled when it is first asked for.

    It cannot where there is a GPU, whose XLA takes no functions of a processor's. Where it cannot be compiled, as there
    is no C++ compiler or no cache, a warning says so.

    Args:
        source: name of a file of this room's `native`, without its ending.
    """
    if tf.config.list_logical_devices("GPU"):
        return False
    try:
        _load(source)
    except (TfperfError, OSError) as error:
        warnings.warn(f"training goes on without {source}.cc, and is slower: {shortened(error)}", stacklevel=2)
        return False
    return True


def _load(source: str) -> None:
    home = tensorflow_folder()
    level = level_of_cpu()
    of_level = [f"-march={level}"] if level else []
    of_level += [option for flag, option in EXTENSIONS.items() if flag in flags_of_cpu()]
    options = [*OPTIONS, *of_level, *MORE_OPTIONS.get(source, ()), f"-I{home / 'include'}"]
    file = compile_once(SOURCES / f"{source}.cc", f"{source}.so", options)
    library = ctypes.CDLL(str(file))  # what it needs of TensorFlow is loaded already
    library.tfperf_register.restype = ctypes.c_bool
    if not library.tfperf_register():
        raise EngineError(f"expected Linux and XLA to take the functions of {file}")


def call(
    name: str, operands: Sequence[Any], results: Sequence[int | tf.TensorSpec], **settings: int | float
) -> list[Any]:
    """Call a function by the name that it is registered by, within what is `compiled`.

    Args:
        operands: tensors of one axis or more, whose sizes are known but for the first of each.
        results: for each result the number of the operand whose shape and type it has, or its shape and type. The first
            size of such a shape may be open, and is then that of the first operand.
        settings: numbers that the function asks for by name, `int32_t` or `float`.
    """
    forms = [operands[one] if isinstance(one, int) else one for one in results]
    found: list[Any] = xla.call_module(
        list(operands),
        version=MODULE_VERSION,
        module=_module(name, operands, results, settings).encode(),
        Tout=[form.dtype for form in forms],
        Sout=[form.shape for form in forms],
        platforms=["CPU"],
    )
    return found


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that XLA compiles, so that it may `call`."""
    found: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return found


def _module(
    name: str,
    operands: Sequence[Any],
    results: Sequence[int | tf.TensorSpec],
    settings: Mapping[str, int | float],
) -> str:
    """The call as a program of StableHLO.

    Sizes that are open are known when XLA compiles it. Which size a result has, it is told by operands beside the
    function's own, one of whole numbers for each result; the function itself does not get these.
    """
    kinds = [_kind(one) for one in operands]
    given = ", ".join(f"%operand{number}: {kind}" for number, kind in enumerate(kinds))
    forms = [operands[one] if isinstance(one, int) else one for one in results]
    returned = ", ".join(map(_kind, forms))
    lines, shapes = [], []
    for number, one in enumerate(results):
        sizes = []
        for axis, size in enumerate(forms[number].shape):
            sizes.append(f"%size{number}_{axis}")
            if size is None:  # of an operand
                like = one if isinstance(one, int) else 0
                asked = f"%operand{like}, dim = {axis} : ({kinds[like]})"
                open_size = f"stablehlo.get_dimension_size {asked} -> tensor<i32>"
                lines.append(f"%open{number}_{axis} = {open_size}")
                lines.append(f"{sizes[-1]} = stablehlo.reshape %open{number}_{axis} : (tensor<i32>) -> tensor<1xi32>")
            else:
                lines.append(f"{sizes[-1]} = stablehlo.constant dense<{size}> : tensor<1xi32>")
        shapes.append(f"tensor<{len(sizes)}xi32>")
        ones = ", ".join(["tensor<1xi32>"] * len(sizes))
        lines.append(f"%shape{number} = stablehlo.concatenate {', '.join(sizes)}, dim = 0 : ({ones}) -> {shapes[-1]}")
    all_operands = ", ".join(
        [*(f"%operand{one}" for one in range(len(kinds))), *(f"%shape{one}" for one in range(len(results)))]
    )
    places = ", ".join(str(len(kinds) + one) for one in range(len(results)))
    told = ", ".join(f"{key} = {_number(value)}" for key, value in settings.items())
    options = (
        f"api_version = 4 : i32, backend_config = {{{told}}}, "
        f"indices_of_shape_operands = dense<[{places}]> : tensor<{len(results)}xi64>"
    )
    form = f"({', '.join([*kinds, *shapes])}) -> ({returned})"
    lines.append(f"%all:{len(results)} = stablehlo.custom_call @{name}({all_operands}) {{{options}}} : {form}")
    lines.append(f"return {', '.join(f'%all#{one}' for one in range(len(results)))} : {returned}")
    body = "\n    ".join(lines)
    return f"""module @call attributes {{jax.uses_shape_polymorphism = true}} {{
  func.func public @main({given}) -> ({returned}) {{
    {body}
  }}
}}
"""


def _number(value: int | float) -> str:
    """A number as MLIR writes it: with digits enough for any in float32, and a decimal point."""
    return f"{value} : i32" if hasattr(value, "__index__") else f"{value:.9e} : f32"


def _kind(tensor: Any) -> str:
    """Sizes and type of a tensor, as MLIR writes them."""
    sizes = ("?" if size is None else str(size) for size in tensor.shape)
    return f"tensor<{'x'.join([*sizes, ALL_TYPES[tensor.dtype.name]])}>"
