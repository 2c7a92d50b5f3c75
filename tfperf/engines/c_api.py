"""TensorFlow through its C API: the exported net in a process that has no Python of TensorFlow in it."""

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.native_code import SOURCES, count_unnamed_threads, view_memory
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.errors import EngineError, ThreadsError, shortened
from tfperf.exports.signature import Signature
from tfperf.native.compiling import compile_once, tensorflow_folder

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["TENSORS", "convert", "load"]

TENSORS = "tensors.json"
"""Beside a SavedModel: input or output -> the tensor of its graph that holds it. TensorFlow's Python does without."""

LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")

TYPES: Mapping[str, int] = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
"""NumPy's name -> TF_DataType, of the types that both have."""

OTHER_FORMS = 1
"""What a run says when the outputs wait to be taken; when they do not it says 0, and when it failed anything else."""

WHY = 1000
"""Bytes for a reason."""


def convert(servable: "Servable", plan: Plan, examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write a SavedModel in the plan's precision."""
    from tfperf.engines import saved_model

    return saved_model.convert(servable, plan, examples, folder)


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load it into a session of its own.

    Raises:
        EngineError: there is no C compiler or no TensorFlow, the net takes or gives other than numbers, TensorFlow
            cannot load it, or has started in this process with another number of threads.
        OSError: the cache cannot be written.
    """
    for form in (*signature.inputs, *signature.outputs):
        if form.dtype not in TYPES:
            raise EngineError(f"{plan}: expected inputs and outputs of {', '.join(TYPES)}. Received: {form}")
    unnamed = count_unnamed_threads()
    net = _Net(folder, signature, plan)
    try:
        threads = _prove_threads(plan, count_unnamed_threads() - unnamed)
    except EngineError:
        net.close()
        raise
    return Runner(
        plan,
        signature,
        net.run_with_one if len(signature.inputs) == 1 else net.run,
        proof={**proof, "threads": threads},
        reuses_outputs=True,
        close=net.close,
    )


class _Net:
    """A session, with NumPy's views of the memory of its inputs and outputs, remade when their shapes change."""

    def __init__(self, folder: Path, signature: Signature, plan: Plan) -> None:
        self._library = _library()
        self._signature, self._plan = signature, plan
        self._call: Callable[[Any], int] = self._library.tfperf_run
        tensors = json.loads((folder / TENSORS).read_text(encoding="utf-8"))
        sides = (("inputs", signature.inputs), ("outputs", signature.outputs))
        places = [tensors[f"{side}/{form.name}"].rpartition(":") for side, forms in sides for form in forms]
        config, why = _config(plan.threads), ctypes.create_string_buffer(WHY)
        self._handle = ctypes.c_void_p(
            self._library.tfperf_open(
                str(folder).encode(),
                config,
                len(config),
                len(signature.inputs),
                len(signature.outputs),
                (ctypes.c_char_p * len(places))(*(operation.encode() for operation, _, _ in places)),
                (ctypes.c_int * len(places))(*(int(index) for _, _, index in places)),
                why,
                WHY,
            )
        )
        if not self._handle:
            reason = shortened(why.value.decode(errors="replace"))
            raise EngineError(f"{plan} cannot load the net: {reason}")
        self._shapes: list[tuple[int, ...] | None] = [None] * len(signature.inputs)
        self._inputs: list[NDArray[Any]] = []
        self._outputs: Arrays = ()

    def run(self, *arrays: NDArray[Any]) -> Arrays:
        if [array.shape for array in arrays] != self._shapes:
            self._make_room(arrays)
        for view, array in zip(self._inputs, arrays, strict=True):
            view[...] = array
        if state := self._call(self._handle):
            self._take_outputs(state)
        return self._outputs

    def run_with_one(self, array: NDArray[Any]) -> Arrays:
        """Do the same for a net of one input, with a microsecond less around the session's own time."""
        if array.shape != self._shapes[0]:
            self._make_room((array,))
        self._inputs[0][...] = array
        if state := self._call(self._handle):
            self._take_outputs(state)
        return self._outputs

    def close(self) -> None:
        self._inputs, self._outputs = [], ()
        self._library.tfperf_close(self._handle)

    def _make_room(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._shapes = [None] * len(arrays)  # as long as it is half done
        self._inputs = []
        for index, (form, array) in enumerate(zip(self._signature.inputs, arrays, strict=True)):
            shape = (ctypes.c_int64 * array.ndim)(*array.shape)
            place = self._library.tfperf_input(self._handle, index, TYPES[form.dtype], shape, array.ndim)
            if not place:
                raise MemoryError(f"expected room for an input {array.shape} of {form.dtype}")
            self._inputs.append(view_memory(place, array.shape, form.dtype))
        self._shapes = [array.shape for array in arrays]

    def _take_outputs(self, state: int) -> None:
        if state != OTHER_FORMS:
            reason = self._library.tfperf_why(self._handle).decode(errors="replace")
            raise EngineError(f"{self._plan} cannot run: {shortened(reason)}")
        outputs = []
        for index, form in enumerate(self._signature.outputs):
            rank = self._library.tfperf_rank(self._handle, index)
            if rank < 0:
                raise EngineError(f"{self._plan}: the output {form} has more dimensions than this engine can give")
            shape = [self._library.tfperf_size(self._handle, index, axis) for axis in range(rank)]
            outputs.append(np.empty(shape, form.dtype))
        for index, output in enumerate(outputs):
            self._library.tfperf_take(self._handle, index, output.ctypes.data)
        self._outputs = tuple(outputs)


def _library() -> Any:
    home = tensorflow_folder()
    options = ["-O2", "-shared", "-fPIC", f"-I{home / 'include'}", f"-L{home}", *(f"-l:{name}" for name in LIBRARIES)]
    file = compile_once(SOURCES / "tensorflow_session.c", "tensorflow_session.so", options)
    try:
        for name in LIBRARIES:  # found by those that need them, wherever the wheel is
            ctypes.CDLL(str(home / name))
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise EngineError(f"expected TensorFlow's libraries to load; {shortened(error)}") from error
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    names, numbers, sizes = ctypes.POINTER(text), ctypes.POINTER(integer), ctypes.POINTER(ctypes.c_int64)
    library.tfperf_open.argtypes = [
        *(text, text, ctypes.c_size_t, integer, integer, names, numbers, text, ctypes.c_size_t)
    ]
    library.tfperf_open.restype = pointer
    library.tfperf_input.argtypes = [pointer, integer, integer, sizes, integer]
    library.tfperf_input.restype = pointer
    library.tfperf_rank.argtypes = [pointer, integer]
    library.tfperf_size.argtypes = [pointer, integer, integer]
    library.tfperf_size.restype = ctypes.c_int64
    library.tfperf_take.argtypes = [pointer, integer, pointer]
    library.tfperf_take.restype = None
    library.tfperf_run.argtypes = [pointer]
    library.tfperf_why.argtypes = [pointer]
    library.tfperf_why.restype = text
    library.tfperf_close.argtypes = [pointer]
    library.tfperf_close.restype = None
    return library


def _config(threads: int | None) -> bytes:
    """The bytes of a ConfigProto: so many threads for an operation, and one operation at a time.

    Its fields: intra_op_parallelism_threads 2, inter_op_parallelism_threads 5, experimental.executor_type 16.3.
    The executor of one thread, the caller's, spares each call the way to another thread and back.
    """
    if threads is None:
        return b""
    executor = b"SINGLE_THREADED_EXECUTOR"
    experimental = b"\x1a" + bytes([len(executor)]) + executor
    return b"\x10" + _varint(threads) + b"\x28\x01" + b"\x82\x01" + bytes([len(experimental)]) + experimental


def _varint(number: int) -> bytes:
    """A number in the encoding of protocol buffers: seven bits a byte, the lowest first."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


_pools: list[int] = []
"""Threads of the pool that TensorFlow made in this process, with the first session, for all sessions."""


def _prove_threads(plan: Plan, new: int) -> str:
    """What shows how many threads divide an operation among them.

    Args:
        new: threads that came with the session.
    """
    if new > 0:
        _pools.append(new)
    found = _pools[-1] if _pools else 0
    if plan.threads not in (None, found):
        had = f"it has started with {found}" if found else "Python's has started it"
        raise ThreadsError(
            f"expected TensorFlow with {plan.threads} threads, in this process {had}; use a fresh process"
        )
    return f"{found or 'unknown'} in TensorFlow's pool, as the kernel counts them"
