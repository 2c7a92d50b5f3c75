"""`tfperf.tune_training`: which plan trains a model fastest on this machine, and learns the same."""

import ast
import contextlib
import hashlib
import site
import sys
import sysconfig
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from pydantic import ValidationError

from tfperf.data import NAMES as DATA_NAMES
from tfperf.errors import EngineError, SearchError
from tfperf.files import scratch_folder
from tfperf.measure import Doubt, Environment, Progress
from tfperf.measure.memory import usable_memory
from tfperf.nets import NAMES
from tfperf.search.journal import Journal, journal_folder
from tfperf.search.outcome import FROM_PYTHON
from tfperf.search.question import MEMORY_SHARE, TRIAL_SECONDS
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.search.training.searching import Listener, TrainingQuestion, TrainingSearch
from tfperf.system import usable_cores
from tfperf.training.plan import CHANGES, TrainingPlan
from tfperf.trials.side_by_side import printable
from tfperf.trials.training.process import TrainingProcess
from tfperf.trials.training.trial import TrainingTrial
from tfperf.trials.trial import TrialError
from tfperf.tuning.tuned_training import TunedTraining

__all__ = ["tune_training"]

NOT_CONFIRMED = Doubt(
    name="not_confirmed",
    words="the search was stopped, and the best so far did not take turns with the others",
    advice="run the same command again: it continues where it stopped",
)


def tune_training(
    model: str | keras.Model,
    data: Any,
    *,
    batch_size: int | Sequence[int] | None = None,
    changes: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    memory_limit: int | None = None,
    trial_seconds: float = TRIAL_SECONDS,
    time_limit: float | None = None,
    fresh: bool = False,
    listener: Listener | None = None,
) -> TunedTraining:
    """Search for the plan that trains a model fastest on this machine, and learns as it does in float32.

    Every plan runs in a process of its own. Before it is timed it trains the first steps, with the weights and
    examples that the model has in float32 too, and its loss must stay in the band of several seeds of float32. What is
    finished is kept on disk: after a kill or Ctrl-C the same call goes on where it was. Ctrl-C gives the best so far.

    Args:
        model: a compiled `keras.Model`, or what the command line takes: "resnet18", "my_file.py:build", "net.keras".
            One that is not compiled gets Adam and, for whole-number labels, the cross-entropy.
        data: (x, y) or (x, y, sample weights) as arrays of (examples, ...), or what the command line takes:
            "fashion_mnist", "my_file.py:data", "examples.npz". A function may return a `tf.data.Dataset` of batches.
        batch_size: of arrays; of several the fastest is found. None: Keras's 32, or that of the data set.
        changes: names of `tfperf.training.plan.CHANGES` that may be made; None: all.
        threads: thread counts to try beside TensorFlow's own choice; None: 1, 2, 4, ... below the number of cores.
        memory_limit: the memory that a trial may use, beyond which it is ended, in bytes; None: 80 % of the machine's.
        trial_seconds: the most seconds for each step of a trial; then it is ended.
        time_limit: seconds of searching; then the best plans so far are measured in turns. None: to the end.
        fresh: forget what an earlier search that was stopped has found, as after a change of files that `data` reads.
        listener: is told how far the search is.

    Raises:
        ExportError: there is no such model, or there are no such data.
        EngineError: the model does not train as it is.
        SearchError: another process tunes the same model now.
        ValueError: the question makes no sense.
        OSError: the cache cannot be written.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder("tfperf-tune-"))
        opened_as, data_words = _words(model, FROM_PYTHON), _words(data, FROM_PYTHON)
        model, data = _stored_model(model, scratch), _stored_data(data, scratch)
        question = _asked(
            changes=tuple(CHANGES if changes is None else changes),
            batch_sizes=_batch_sizes(batch_size),
            threads=tuple(_below(usable_cores()) if threads is None else threads),
            trial_seconds=trial_seconds,
            memory_limit=memory_limit or int(MEMORY_SHARE * usable_memory()),
            time_limit=time_limit,
        )
        environment = Environment.here()
        fingerprints = [opened_as, data_words, _digest(model), _digest(data)]
        journal = Journal(journal_folder(fingerprints, question, environment), TrainingTrial)
        stack.enter_context(journal.held())
        if fresh:
            journal.discard()

        def start(plan: TrainingPlan) -> TrainingProcess:
            return TrainingProcess.start(plan, deadline=question.trial_seconds, memory_limit=question.memory_limit)

        search = TrainingSearch(question, model, data, start, journal, listener or _Quiet(), stack)
        began = time.monotonic()
        ended: Literal["finished", "time limit", "interrupted"] = "finished"
        try:
            search.run()
        except TrialError as error:  # of the reference: whatever else fails is a trial that did not run
            raise EngineError(str(error)) from error
        except KeyboardInterrupt:
            ended = "interrupted"
            if not search.references:
                raise SearchError("interrupted before the model had been trained once; nothing is known yet") from None
        if search.ran_out_of_time and ended == "finished":
            ended = "time limit"
        winner, equals = search.winner()
        outcome = TrainingOutcome(
            model=search.first_reference.name,
            opened_as=printable(opened_as),
            data=printable(data_words),
            compiled=search.first_reference.compiled,
            takes_arrays=search.first_reference.takes_arrays,
            takes_weights=search.first_reference.takes_weights,
            reshaped=search.first_reference.reshaped,
            batch_size=search.first_reference.batch_size,
            steps=search.first_reference.steps,
            environment=environment,
            seconds=time.monotonic() - began,
            ended=ended,
            references=search.references,
            trials=tuple(search.trials.values()),
            left_out=search.left_out,
            final=search.final,
            winner=winner,
            equals=equals,
            default=search.default,
            doubts=(NOT_CONFIRMED,) if ended == "interrupted" else (),
        )
        return TunedTraining(outcome, journal)


def _asked(**fields: Any) -> TrainingQuestion:
    unknown = [name for name in fields["changes"] if name not in CHANGES]
    if unknown:
        raise ValueError(f"expected changes of {', '.join(CHANGES)}. Received: {unknown[0]}")
    try:
        return TrainingQuestion(**fields)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise ValueError(": ".join([*map(str, first["loc"]), first["msg"]])) from error


def _batch_sizes(given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return ()
    sizes = (given,) if isinstance(given, int) else tuple(sorted(set(given)))
    if not sizes or min(sizes) < 1:
        raise ValueError(f"expected batch sizes from 1. Received: {given}")
    return sizes


def _below(cores: int) -> list[int]:
    return [2**power for power in range(cores.bit_length()) if 2**power < cores]


def _words(given: Any, otherwise: str) -> str:
    return given if isinstance(given, str) else otherwise


def _stored_model(model: Any, scratch: Path) -> str:
    if isinstance(model, str):
        return model
    if not isinstance(model, keras.Model):
        raise ValueError(f"expected a keras.Model, or what names one. Received: {type(model).__name__}")
    file = scratch / "model.keras"
    try:
        model.save(file)
    except Exception as error:  # whatever the user's own classes raise
        raise ValueError(
            f"expected a model that Keras can save; put it into a function, file.py:build: {error}"
        ) from error
    return str(file)


def _stored_data(data: Any, scratch: Path) -> str:
    if isinstance(data, str):
        return data
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        raise ValueError(
            f"expected (x, y) or (x, y, sample weights) as arrays, or what names them. Received: {type(data).__name__}"
        )
    file = scratch / "examples.npz"
    arrays = dict(zip(("x", "y", "sample_weight"), (np.asarray(one) for one in data), strict=False))
    if any(array.dtype == object for array in arrays.values()):
        raise ValueError("expected one array each for x and y; put structures of several into a function, file.py:data")
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return str(file)


def _digest(source: str) -> str:
    """The content of the file that a model or data come from; a name alone where they come with tfperf.

    Modules beside a Python file that it imports count, too. Files of data that it reads do not.
    """
    if source in (*NAMES, *DATA_NAMES):
        return source
    if source.endswith(".keras") and zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:  # without the date, which Keras writes too
            parts = [archive.read(name) for name in sorted(archive.namelist()) if name != "metadata.json"]
        return hashlib.sha256(b"".join(parts)).hexdigest()
    place = source.rpartition(":")[0] or source
    is_file = Path(place).is_file()
    found = Path(place) if is_file else _file_of_module(place)
    if found is None:
        return source
    file = found.resolve()
    parts = [file.read_bytes()]
    if file.suffix == ".py":
        imported = _imported_from_beside(file, _folders_of_file(file) if is_file else [_folder_of_module(file, place)])
        parts += [imported[one] for one in sorted(imported)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _file_of_module(name: str) -> Path | None:
    """The file of a module, as the processes of plans will find it; nothing is imported.

    None: there is no such module, or it has no file.
    """
    first, *others = name.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        return None
    spec = PathFinder.find_spec(first, [str(Path.cwd()), *sys.path])
    if spec is None:  # an editable install may have a finder of its own
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for finder in finders if (found := finder.find_spec(first, None)) is not None), None)
    for part in others:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, spec.submodule_search_locations)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():  # a folder without __init__.py
        return None
    return Path(spec.origin)


def _folder_of_module(file: Path, name: str) -> Path:
    """Where the package of a module lies, which is where its absolute imports are looked for."""
    above = name.count(".") + (file.name == "__init__.py")
    return file.parents[min(above, len(file.parents) - 1)]


def _folders_of_file(file: Path) -> list[Path]:
    """Where the absolute imports of a Python file are looked for: its folder, and where its package lies."""
    folder = file.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        folder = folder.parent
    return list(dict.fromkeys([file.parent, folder]))


def _imported_from_beside(file: Path, folders: Sequence[Path]) -> dict[Path, bytes]:
    """What a Python file imports from folders, and what that imports: file -> content. Nothing is imported.

    Args:
        file: is read too, but not among the result.
        folders: where absolute imports are looked for; the last is where the file's own package lies. Of a folder of
            installed packages, or of Python's own modules, that package alone is read.
    """
    root = folders[-1]
    own = Path(file.relative_to(root).parts[0]).stem
    others = *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")
    installed = {Path(folder).resolve() for folder in others}
    above = file.parents[: file.parents.index(root)]
    waiting = [file, *(folder / "__init__.py" for folder in above)]
    contents: dict[Path, bytes] = {}
    seen: set[Path] = set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        try:
            contents[place] = place.read_bytes()
        except OSError:  # most names are not of modules beside it
            continue
        for level, parts in _imports(contents[place]):
            if level:
                base = place.parents[min(level, len(place.parents)) - 1]
                bases = [base] if root in base.parents else []
            else:
                bases = [folder for folder in folders if folder not in installed or parts[0] == own]
            for base in bases:
                for part in parts:
                    base = base / part
                    waiting += [base.with_suffix(".py"), base / "__init__.py"]
    contents.pop(file, None)
    return contents


def _imports(code: bytes) -> Iterator[tuple[int, list[str]]]:
    """The modules that a file may import: dots before the name, and its parts. `from x import y` may mean x.y."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its syntax; the process that opens it says so
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            yield from ((node.level, [*module, alias.name]) for alias in node.names)


class _Quiet:
    """A listener that says nothing."""

    def phase(self, words: str) -> None:
        pass

    def looked(self, trial: TrainingTrial, best: TrainingTrial | None) -> None:
        pass

    def measuring(self, progress: Progress) -> None:
        pass
