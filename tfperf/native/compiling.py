"""C and C++ compiled against TensorFlow's wheel, each source once."""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfperf.caching import cache_folder
from tfperf.errors import EngineError, shortened
from tfperf.files import writing_folder_whole
from tfperf.processes import run

__all__ = [
    "compile_once",
    "find_compiler",
    "run_tool",
    "tensorflow_folder",
    "version_of",
]

DEADLINE = 600.0
"""Seconds for a compiler, which needs a few, or tens on a busy machine."""

COMPILERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ".c": ("CC", ("cc", "gcc", "clang")),
    ".cc": ("CXX", ("c++", "g++", "clang++")),
}
"""Ending of a source -> the variable that names its compiler, and where there is none, what to look for."""


def tensorflow_folder() -> Path:
    """Where TensorFlow's wheel is installed, with its libraries and headers; nothing is imported.

    Raises:
        EngineError: it is not, or it comes without what C and C++ need.
    """
    found = importlib.util.find_spec("tensorflow")
    for place in (found.submodule_search_locations or ()) if found else ():
        folder = Path(place)
        if all((folder / part).exists() for part in ("include", "libtensorflow_cc.so.2")):
            return folder
    raise EngineError(
        "expected TensorFlow's libraries and headers, as its wheel for Linux has them; pip install tensorflow"
    )


def find_compiler(ending: str) -> list[str]:
    """The command that compiles files of this ending: .c or .cc.

    Raises:
        EngineError: there is none.
    """
    variable, names = COMPILERS[ending]
    given = shlex.split(os.environ.get(variable, ""))
    for command in [given] if given else [[name] for name in names]:
        if found := shutil.which(command[0]):
            return [found, *command[1:]]
    raise EngineError(
        f"expected a compiler for {ending} files ({' '.join(given) or ', '.join(names)}); "
        f"install one (Debian: g++, with gcc), or set {variable}"
    )


@functools.cache
def version_of(compiler: str) -> str:
    """What a compiler says that it is, in one line.

    Raises:
        EngineError: it does not run.
    """
    return run_tool([compiler, "--version"], "the compiler").partition("\n")[0]


def compile_once(source: Path, product: str, arguments: Sequence[str]) -> Path:
    """Compile a source, unless the cache has what came of it.

    Headers beside the source count as part of it. Several processes may ask at once: one compiles, the others wait.

    Args:
        product: name of the file that comes of it.
        arguments: of the compiler, after the source.

    Raises:
        EngineError: there is no compiler, or it cannot compile this; names the first error.
        OSError: the cache cannot be written.
    """
    compiler = find_compiler(source.suffix)
    command = [*compiler, str(source), *arguments]  # libraries come after what needs them
    texts = [file.read_text(encoding="utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    made_from = [*texts, *command, version_of(compiler[0]), importlib.metadata.version("tensorflow")]
    key = hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:32]
    home = cache_folder("native")
    folder = home / f"{Path(product).stem}-{key}"
    if not folder.is_dir():
        with _only_one(home / ".lock"):
            if not folder.is_dir():  # nobody made it in the meantime
                with writing_folder_whole(folder) as aside:
                    run_tool([*command, "-o", str(aside / product)], f"the compiler, on {source.name},")
    return folder / product


def run_tool(
    command: Sequence[str], name: str, *, deadline: float = DEADLINE, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end; what it wrote to its standard output. None of what it starts outlives the call.

    Args:
        name: how to call it in an error.
        environment: variables beside those of this process.

    Raises:
        EngineError: it cannot be started, fails, or is not done in time; gives its reason in one line.
    """
    try:
        done = run(command, deadline=deadline, environment={**os.environ, **(environment or {})})
    except TimeoutError as error:
        raise EngineError(f"{name} was not done in {deadline:g} s") from error
    except OSError as error:
        raise EngineError(f"{name} cannot be started: {error.filename}: {error.strerror}") from error
    if done.code:
        raise EngineError(f"{name} failed: {_reason(done.errors + done.output, done.code)}")
    return done.output


ERROR = re.compile(
    r"^(?:.*?: )?(?:fatal error|error|LLVM ERROR|[A-Za-z_.]*(?:Error|Exception))(?:: |$).*", re.MULTILINE
)


def _reason(text: str, code: int) -> str:
    """The first compiler's error or the last Python exception in what a tool wrote, in one line."""
    found: list[str] = ERROR.findall(text)
    raised = [line for line in found if re.match(r"[A-Za-z_.]*(?:Error|Exception)\b", line)]
    lines = [line for line in text.splitlines() if line.strip()]
    reason = raised[-1] if raised else found[0] if found else lines[-1] if lines else "it said nothing"
    died = f" (signal {-code})" if code < 0 else ""
    return shortened(reason) + died


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Wait until no other process is in here."""
    with lock.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file, and so with the process
        yield
