"""The process in which one plan runs: `python -m tfperf.trials.worker`, driven by `host.Child`.

A request is a line of JSON on what was standard input, with the name of a method of `Worker` and its arguments; the
answer is a line of JSON on what was standard output. What the engine prints goes to standard error instead, and what
it and its own processes read is empty.
"""

import contextlib
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.building import compile_converted, load
from tfperf.engines.catalog import find_engine
from tfperf.engines.checking import WrongAnswersError, accuracy_of, check_runner
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.errors import TfperfError, in_one_line
from tfperf.exports.signature import Signature
from tfperf.files import writing_folder_once
from tfperf.importing import KERAS_CAN_DO_WITHOUT, absent, no_collections
from tfperf.measure.memory import PeakMemory
from tfperf.trials.trial import Status

if TYPE_CHECKING:
    from tfperf.engines.conversions import Conversions
    from tfperf.exports.servable import Servable

__all__ = ["USUAL_TMPDIR", "Worker", "answer_of", "main", "serve", "temporary_files_as_usual"]

USUAL_TMPDIR = "TFPERF_USUAL_TMPDIR"
"""The variable with what TMPDIR is outside of the process, empty where it is not set."""

OOM_SCORE = Path("/proc/self/oom_score_adj")


@contextlib.contextmanager
def temporary_files_as_usual() -> Iterator[None]:
    """Have temporary files where the user has them meanwhile: code may look for what it has kept among them."""
    usual = os.environ.get(USUAL_TMPDIR, os.environ.get("TMPDIR", ""))
    ours = os.environ.pop("TMPDIR", None), tempfile.tempdir
    tempfile.tempdir = None  # it is looked for anew
    if usual:
        os.environ["TMPDIR"] = usual
    try:
        yield
    finally:
        os.environ.pop("TMPDIR", None)
        if ours[0] is not None:
            os.environ["TMPDIR"] = ours[0]
        tempfile.tempdir = ours[1]


class Worker:
    """Answers requests about one plan, or converts for many."""

    _runner: Runner
    _conversions: "Conversions"

    def __init__(self) -> None:
        self._peak = PeakMemory()
        self._inputs: dict[int, tuple[NDArray[Any], ...]] = {}

    @no_collections()
    def load(self, plan: str, signature: str, folder: str) -> dict[str, Any]:
        """Load what was converted for the plan."""
        began = time.perf_counter()
        chosen = Plan.model_validate_json(plan)
        if find_engine(chosen.engine).loads_in_tensorflow:
            _import_tensorflow()
        self._runner = load(Path(folder), Signature.model_validate_json(signature), chosen)
        return self._loaded(time.perf_counter() - began)

    @no_collections()
    def build(self, plan: str, origin: list[Any], weights: str, signature: str) -> dict[str, Any]:
        """Open a model again, for an engine that calls the net itself."""
        began = time.perf_counter()
        chosen = Plan.model_validate_json(plan)
        _import_tensorflow()
        from tfperf.engines.building import build
        from tfperf.engines.tensorflow_runtime import use_threads

        use_threads(chosen.threads)  # before the net is made, with which TensorFlow starts
        self._runner = build(_open(origin, weights, signature), chosen)
        return self._loaded(time.perf_counter() - began)

    def take(self, runner: Runner, seconds: float) -> dict[str, Any]:
        """Go on with a plan that was made real in this process."""
        self._runner = runner
        return self._loaded(seconds)

    @no_collections()
    def prepare(
        self, origin: list[Any], weights: str, signature: str, cache: str, representative: str | None, fingerprint: str
    ) -> None:
        """Open a model again, to convert it."""
        _import_tensorflow()
        from tfperf.engines.conversions import Conversions

        examples = _arrays(Path(representative)) if representative is not None else None
        self._conversions = Conversions(_open(origin, weights, signature), Path(cache), examples, fingerprint)

    def convert(self, plan: str) -> str:
        """Convert it for a plan; the folder of what was made."""
        return str(self._conversions.folder(Plan.model_validate_json(plan)))

    def convert_to_compile(self, plan: str, source: str) -> None:
        """Convert it for a plan whose engine compiles what is written."""
        self._conversions.convert(Plan.model_validate_json(plan), Path(source))

    def compile_converted(self, plan: str, source: str, folder: str) -> None:
        """Compile what was written; needs no model."""
        with writing_folder_once(Path(folder)) as aside:
            compile_converted(Path(source), Plan.model_validate_json(plan), aside)

    def check(
        self, batch: int, inputs: str, reference: str, tolerance: float | None, same_top1: bool
    ) -> dict[str, Any]:
        """Compare the answers with the reference; the arrays lie in files."""
        arrays = _arrays(Path(inputs))
        self._inputs[batch] = self._runner.signature.rows(arrays, range(batch))
        began = time.perf_counter()
        self._runner(*self._inputs[batch])
        first_call = time.perf_counter() - began
        agreement = check_runner(
            self._runner, arrays, _arrays(Path(reference)), tolerance, batch=batch, same_top1=same_top1
        )
        return {"agreement": agreement.model_dump_json(), "first_call_seconds": first_call}

    def accuracy(self, batch: int, inputs: str, labels: str) -> float:
        """The share of labels that the answers find."""
        answers = self._runner.signature.in_batches(self._runner, _arrays(Path(inputs)), batch)
        return accuracy_of(answers, _arrays(Path(labels)))

    def timed(self, batch: int, calls: int) -> dict[str, float]:
        """Seconds, and seconds of processors, of so many calls together."""
        run, arrays = self._runner.run, self._inputs[batch]
        loop = itertools.repeat(None, calls)
        cpu, start = time.process_time(), time.perf_counter()
        for _ in loop:
            run(*arrays)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}

    def memory(self) -> str:
        """The most memory since the start."""
        return self._peak.read().model_dump_json()

    def _loaded(self, seconds: float) -> dict[str, Any]:
        return {"proof": self._runner.proof, "size": self._runner.size, "load_seconds": seconds}


def main() -> None:
    """Answer requests about a plan until they end."""
    serve(Worker())


def serve(worker: Any) -> None:
    """Answer requests until they end.

    Args:
        worker: its methods are what can be asked for; their arguments and answers are what JSON can hold.
    """
    OOM_SCORE.write_text("1000", encoding="utf-8")  # where memory runs out, this goes first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a line, not gigabytes on the disk
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    for line in requests:
        name, arguments = json.loads(line)
        _write(replies, answer_of(worker, name, arguments))


def answer_of(worker: Any, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of a request: {"answer": ...}, or {"error": one line, "status": of the trial}."""
    try:
        return {"answer": getattr(worker, name)(**arguments)}
    except WrongAnswersError as error:
        return _refusal(Status.WRONG, str(error))
    except MemoryError as error:
        return _refusal(Status.OUT_OF_MEMORY, f"MemoryError: {error}")
    except (TfperfError, ValueError, OSError) as error:
        return _refusal(Status.REFUSED, str(error))
    except Exception as error:  # whatever an engine raises: it is the answer
        return _refusal(Status.REFUSED, in_one_line(error))


def _refusal(status: Status, words: str) -> dict[str, Any]:
    return {"status": status, "error": " ".join(words.split())}


def _import_tensorflow() -> None:
    """Import it before anything else does."""
    with absent(*KERAS_CAN_DO_WITHOUT):
        import tensorflow  # noqa: F401


def _open(origin: list[Any], weights: str, signature: str) -> "Servable":
    """The model that the parent has, with its weights and names."""
    from tfperf.exports.opening import open_model

    model, chosen, seed = origin  # a `process.Origin`
    opened = open_model(model, signature=chosen, seed=seed, around=temporary_files_as_usual)
    servable = opened.named_as(Signature.model_validate_json(signature))
    if servable.net is not None:
        servable.net.set_weights(_arrays(Path(weights)))
    return servable


def _write(replies: BinaryIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer).encode() + b"\n")
    replies.flush()


def _arrays(file: Path) -> list[NDArray[Any]]:
    with np.load(file, allow_pickle=False) as stored:
        return [stored[str(index)] for index in range(len(stored.files))]


if __name__ == "__main__":
    main()
