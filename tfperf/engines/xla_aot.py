"""XLA, ahead of time: the net as machine code, in a library that needs neither Python nor a graph."""

import ctypes
import json
import re
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tfperf.engines.native_code import SOURCES, count_unnamed_threads, view_memory
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.errors import EngineError, shortened
from tfperf.exports.signature import SIGNATURE_NAME, Signature
from tfperf.native.compiling import compile_once, find_compiler, run_tool, tensorflow_folder, version_of
from tfperf.native.processor import CPU_DESCRIPTION, level_of_cpu
from tfperf.system import usable_cores

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["compile_converted", "convert", "cpu_level", "load", "target"]

SAVED = "saved"
LIBRARY = "net.so"
FORMS = "outputs.json"
"""Output -> its sizes."""

TYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")

# -w: the warnings are about TensorFlow's headers. Hidden: two nets in one process must not share what has one name.
COMPILING = ("-std=c++17", "-w", "-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-DEIGEN_MAX_ALIGN_BYTES=64")


def target(_plan: Plan) -> str:
    """What the conversions of this machine depend on.

    Raises:
        EngineError: the processor is not an x86-64, or there is no compiler or no TensorFlow.
    """
    compiler = find_compiler(".cc")
    return f"{cpu_level()}; {' '.join(compiler)}: {version_of(compiler[0])}; {tensorflow_folder()}"


def cpu_level(description: Path = CPU_DESCRIPTION) -> str:
    """The level of x86-64 that this machine's processor has, as LLVM calls it.

    Raises:
        EngineError: it is another processor.
    """
    level = level_of_cpu(description)
    if level is None:
        raise EngineError("expected an x86-64 processor under Linux, for which XLA compiles ahead of time")
    return level


def convert(servable: "Servable", plan: Plan, _examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write the SavedModel of one batch size that is compiled.

    Raises:
        EngineError: it takes or gives other than numbers, or a size beside the batch is open.
    """
    _check_forms(servable, plan)
    return _save(servable, plan, folder / SAVED)


def compile_converted(source: Path, plan: Plan, folder: Path, proof: Mapping[str, str]) -> dict[str, str]:
    """Compile it for this processor, into a library with its weights.

    Raises:
        EngineError: XLA cannot compile it, or there is no C++ compiler.
    """
    level, home = cpu_level(), tensorflow_folder()
    with TemporaryDirectory() as place:
        work = Path(place)
        _compile(source / SAVED, work, level, plan)
        header = (work / "net.h").read_text(encoding="utf-8")
        (folder / FORMS).write_text(json.dumps(_output_sizes(header)), encoding="utf-8")
        _link(work, home, folder / LIBRARY)
    pooled = header.count("intra_op_thread_pool()")
    threads = f"{pooled} operation{'s' * (pooled != 1)}"
    return {**proof, "precision": f"{proof['precision']}, for {level}", "threads": threads}


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load the library. TensorFlow's own are loaded only as far as it needs them.

    Raises:
        EngineError: it does not load, or its threads do not start.
    """
    net = _Net(folder, signature, plan)
    threads = f"{net.threads} in a pool, for {proof['threads']}" if net.threads else "1, the caller's"
    return Runner(
        plan,
        signature,
        net.run,
        proof={**proof, "threads": threads},
        reuses_outputs=True,
        close=net.close,
    )


class _Engine:
    """What the library made, which lives as long as anybody looks at its memory."""

    def __init__(self, library: Any, threads: int) -> None:
        self.handle = ctypes.c_void_p(library.tfperf_open(threads))
        weakref.finalize(self, library.tfperf_close, self.handle)


class _Net:
    """The loaded net, with NumPy's views of the memory of its inputs and outputs.

    Attributes:
        run: from arrays to views that the next call overwrites.
        threads: of its pool; 0: it has none.
    """

    def __init__(self, folder: Path, signature: Signature, plan: Plan) -> None:
        self._library = _open_library(folder / LIBRARY)
        wanted = usable_cores() if plan.threads is None else plan.threads
        before = count_unnamed_threads()
        self._engine = _Engine(self._library, 0 if wanted == 1 else wanted)
        self.threads = count_unnamed_threads() - before
        if self.threads != (0 if wanted == 1 else wanted):
            raise EngineError(f"{plan}: expected {wanted} threads. The pool has started {self.threads}")
        handle = self._engine.handle
        sizes = json.loads((folder / FORMS).read_text(encoding="utf-8"))
        self._inputs: list[tuple[int, NDArray[Any]]] = []
        for index, form in enumerate(signature.inputs):
            place = self._library.tfperf_input(handle, form.name.encode())
            if place:  # not one that the net takes and does not use
                shape = [plan.batch if size is None else size for size in form.shape]
                self._inputs.append((index, view_memory(place, shape, form.dtype)))  # type: ignore[arg-type]
        self._outputs: Arrays = tuple(
            view_memory(
                self._library.tfperf_output(handle, form.name.encode()), sizes[form.name], form.dtype, self._engine
            )
            for form in signature.outputs
        )
        self.run = self._calling()

    def close(self) -> None:
        del self.run, self._inputs, self._outputs, self._engine

    def _calling(self) -> Callable[..., Arrays]:
        call, handle, inputs, outputs = self._library.tfperf_run, self._engine.handle, self._inputs, self._outputs

        def run(*arrays: NDArray[Any]) -> Arrays:
            for index, view in inputs:
                view[...] = arrays[index]
            if call(handle):
                raise EngineError("the compiled net failed in its run")
            return outputs

        def run_with_one(array: NDArray[Any]) -> Arrays:
            only[...] = array
            if call(handle):
                raise EngineError("the compiled net failed in its run")
            return outputs

        if len(inputs) == 1 and inputs[0][0] == 0:
            ((_, only),) = inputs
            return run_with_one
        return run


def _check_forms(servable: "Servable", plan: Plan) -> None:
    for form in (*servable.signature.inputs, *servable.signature.outputs):
        if form.dtype not in TYPES:
            raise EngineError(f"{plan}: expected inputs and outputs of {', '.join(TYPES)}. Received: {form}")
    for form in servable.signature.inputs:
        if None in form.shape[1:]:
            raise EngineError(f"{plan}: expected inputs whose only open size is the batch. Received: {form}")


def _save(servable: "Servable", plan: Plan, folder: Path) -> dict[str, str]:
    """Write the SavedModel that is compiled, and say what shows its precision and transformations."""
    from tfperf.engines.tensorflow_runtime import prove_precision
    from tfperf.exports.graphs import read_meta_graph

    folder.mkdir()
    variant = servable.variant(plan.precision, plan.transformations)
    variant.save(folder, plan.batch)
    return {"precision": prove_precision(read_meta_graph(folder).graph_def, plan.precision), **variant.changes}


def _compile(saved: Path, work: Path, level: str, plan: Plan) -> None:
    """From a SavedModel to work/net.h, net.o and net_constants.o, in a process that may die of it."""
    command = [
        *(sys.executable, "-P", "-m", "tfperf.importing"),  # it takes half as long as TensorFlow's own start
        *("tensorflow.python.tools.saved_model_cli", "aot_compile_cpu"),
        *("--dir", str(saved), "--tag_set", "serve", "--signature_def_key", SIGNATURE_NAME),
        *("--output_prefix", str(work / "net"), "--cpp_class", "Net", "--target_cpu", level),
        *("--multithreading", "false" if plan.threads == 1 else "true"),
    ]
    scratch = work / "scratch"
    scratch.mkdir()
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(scratch)}
    run_tool(command, f"{plan}: XLA", environment=quiet)


def _output_sizes(header: str) -> dict[str, list[int]]:
    """Output -> its sizes, from what the compiler wrote."""
    listed = re.search(r"StaticResultNames\(\) \{\s*static const char\* kNames\[\] = \{(.*?)nullptr", header, re.DOTALL)
    names = re.findall(r'"fetch_(\w+)"', listed[1]) if listed else []
    sizes = re.findall(r"kResult\d+Shapes\[\] = \{(.*?)\}", header, re.DOTALL)
    # A scalar has the size -1 there
    return {
        name: [int(size) for size in re.findall(r"-?\d+", one) if int(size) >= 0]
        for name, one in zip(names, sizes, strict=True)
    }


def _link(work: Path, home: Path, library: Path) -> None:
    """Make a library of the net, its weights and the runtime; TensorFlow's own are what it still lacks."""
    included = [f"-I{home / 'include'}", f"-I{home / 'xla_aot_runtime_src'}"]
    runtime = compile_once(SOURCES / "xla_runtime.cc", "xla_runtime.o", [*COMPILING, *included, "-c"])
    # The linker of binutils' that takes one second and not six for TensorFlow's half a million symbols
    linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    command = [
        *(*find_compiler(".cc"), *COMPILING, *linker, "-shared", f"-I{work}", *included, str(SOURCES / "xla_net.cc")),
        *(str(work / "net.o"), str(work / "net_constants.o"), str(runtime)),
        *(f"-L{home}", f"-Wl,-rpath,{home}", "-Wl,-Bsymbolic", "-Wl,--as-needed", "-Wl,--no-undefined"),
        *("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2", "-o", str(library)),
    ]
    run_tool(command, "the compiler, on the net that XLA compiled,")


def _open_library(file: Path) -> Any:
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise EngineError(f"expected a compiled net that loads; {shortened(error)}") from error
    library.tfperf_open.argtypes = [ctypes.c_int]
    library.tfperf_open.restype = ctypes.c_void_p
    for find in (library.tfperf_input, library.tfperf_output):
        find.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        find.restype = ctypes.c_void_p
    library.tfperf_run.argtypes = [ctypes.c_void_p]
    library.tfperf_close.argtypes = [ctypes.c_void_p]
    library.tfperf_close.restype = None
    return library
