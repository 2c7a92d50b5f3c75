"""`tfperf.tune`: which plan runs a model best on this machine."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from tfperf.engines.building import applicable
from tfperf.engines.catalog import known_engines
from tfperf.engines.checking import check_same_top1
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Precision, Transformation
from tfperf.exports.keras_nets import own_constants
from tfperf.files import scratch_folder
from tfperf.measure import Doubt, Environment, Progress
from tfperf.measure.memory import available_memory, usable_memory
from tfperf.search.journal import Journal, journal_folder
from tfperf.search.outcome import FROM_PYTHON, Outcome
from tfperf.search.question import MEMORY_SHARE, TOLERANCE, TRIAL_SECONDS, Objective, Question
from tfperf.search.searching import Labels, Search, Watcher
from tfperf.search.space import Space
from tfperf.system import usable_cores
from tfperf.trials.launching import Launcher
from tfperf.trials.process import store_arrays
from tfperf.trials.side_by_side import ANSWERS_ALIKE, answers_vary, printable
from tfperf.trials.trial import Trial
from tfperf.tuning.subject import Subject, as_graph, read_subject
from tfperf.tuning.tuned import Tuned

__all__ = ["tune"]

Choice = TypeVar("Choice", bound=str)

NOT_CONFIRMED = Doubt(
    name="not_confirmed",
    words="the search was stopped, and the best so far was not measured again",
    advice="run the same command again: it continues where it stopped",
)

OWN_CONSTANTS = Doubt(
    name="own_constants",
    words="the net calls layers on arrays, which only this process has; model(x), predict and tf.function ran in it",
    advice="make them in the call of a layer of yours; then every plan runs in a process of its own",
)
"""For a functional net that calls a layer on an array: the layer's weights would differ in each process."""

NO_CODE = Doubt(
    name="no_code",
    words="only this process has the model's Python code, so model(x), predict and tf.function ran in it",
    advice="put the model into a file and tune file.py:function; then every plan runs in a process of its own",
)


def tune(
    model: Any,
    inputs: Any = None,
    *,
    objective: Objective | Sequence[Objective] = "latency",
    batch: int | Sequence[int] | None = None,
    threads: int | Sequence[int] | None = None,
    engines: Sequence[str] | None = None,
    precisions: Sequence[Precision] = PRECISIONS,
    transformations: Sequence[Transformation] = TRANSFORMATIONS,
    tolerance: float = TOLERANCE,
    same_top1: bool = False,
    labels: Any = None,
    accuracy_drop: float | None = None,
    latency_limit: float | None = None,
    memory_limit: int | None = None,
    trial_seconds: float = TRIAL_SECONDS,
    time_limit: float | None = None,
    signature: str | None = None,
    seed: int = 0,
    cache: Path | None = None,
    fresh: bool = False,
    inputs_file: str | None = None,
    labels_file: str | None = None,
    watcher: Watcher | None = None,
) -> Tuned:
    """Search for the best plan of a model on this machine, and measure it beside what users have without tfperf.

    Every plan runs in a process of its own; its answers are compared with those of the model in float32 before it is
    timed. What is finished is kept on disk: after a kill or Ctrl-C the same call goes on where it was. Ctrl-C gives
    the best so far.

    Args:
        model: a `keras.Model`, or what the command line takes, as "mlp", "my_file.py:build" or "net.keras".
        inputs: arrays in the nest that the model is called with, or by the names of its inputs; None: random ones.
        objective: what is best: latency, throughput, size or memory; of several the first decides, and the front of
            all is told.
        batch: batch sizes; None: that of the inputs, or 1 where there are none, or labels. Latency takes one.
        threads: thread counts to try; None: 1, its doubles, and as many as there are cores.
        engines: engines to try, by name; None: all.
        precisions: precisions to try.
        transformations: changes of the net to try.
        tolerance: the largest error of any output that passes, as a share of the largest value of that output in
            float32.
        same_top1: the largest answer of each row must be the same, too.
        labels: whole numbers for each row of `inputs`, or a dictionary of them by output. With `accuracy_drop`.
        accuracy_drop: the loss of accuracy on the labels that is accepted, in place of the tolerance; 0.005 is 0.5 %.
        latency_limit: the longest time a call may take, in seconds.
        memory_limit: the memory that a trial may use, beyond which it is ended, in bytes; None: 80 % of the machine's;
            never more than 80 % of what is free.
        trial_seconds: the most seconds for each step of a trial, such as converting; then it is ended.
        time_limit: seconds of searching; then the best plans so far are measured. None: to the end.
        signature: of a SavedModel.
        seed: of random inputs, and of the weights of a net by name.
        cache: folder of conversions; None: in tfperf's own cache.
        fresh: forget what an earlier search that was stopped has found.
        inputs_file, labels_file: where the inputs and labels were read, for the commands that repeat the search.
        watcher: is told how far the search is.

    Raises:
        ExportError: there is no such model, or it cannot be traced.
        EngineError: an unknown engine, or a model that takes or gives strings.
        SearchError: another process tunes the same model now.
        ValueError: the question makes no sense, or the model does not take these inputs.
        OSError: the cache cannot be written.
    """
    if (labels is None) != (accuracy_drop is None):
        raise ValueError("expected labels and accuracy_drop together. Received: one of them")
    if labels is not None and inputs is None:
        raise ValueError("expected the inputs that the labels belong to. Received: labels alone")
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder("tfperf-tune-"))
        subject = read_subject(
            model,
            inputs,
            labels,
            scratch,
            signature=signature,
            seed=seed,
            inputs_file=inputs_file,
            labels_file=labels_file,
        )
        question = _asked(
            objectives=(objective,) if isinstance(objective, str) else tuple(objective),
            batches=_numbers((subject.rows if labels is None else 1) if batch is None else batch),
            threads=_numbers(_doubles(usable_cores()) if threads is None else threads),
            engines=tuple(engines if engines is not None else (engine.name for engine in known_engines())),
            precisions=_in_order(PRECISIONS, precisions),
            transformations=_in_order(TRANSFORMATIONS, transformations),
            tolerance=tolerance,
            same_top1=same_top1,
            accuracy_drop=accuracy_drop,
            latency_limit=latency_limit,
            memory_limit=memory_limit or int(MEMORY_SHARE * usable_memory()),
            trial_seconds=trial_seconds,
            time_limit=time_limit,
        )
        if question.same_top1:
            check_same_top1(subject.servable.signature)
        if "latency" in question.objectives and len(question.batches) > 1:
            raise ValueError("expected one batch size for the latency of a call; give one, or ask for throughput")
        return _searched(question, subject, scratch, stack, cache=cache, fresh=fresh, watcher=watcher or _Quiet())


def _searched(
    question: Question,
    subject: Subject,
    scratch: Path,
    stack: contextlib.ExitStack,
    *,
    cache: Path | None,
    fresh: bool,
    watcher: Watcher,
) -> Tuned:
    began = time.monotonic()
    environment = Environment.here()
    space = Space(question, applicable(subject.servable), computes_float16=environment.computes_float16)
    launcher = stack.enter_context(_launcher(subject, question, scratch, cache))
    held = own_constants(subject.servable.net)
    if not subject.graph_only and (held or (subject.opened_as != subject.origin.model and not launcher.can_open())):
        subject = as_graph(subject, scratch)
        launcher.close()
        launcher = stack.enter_context(_launcher(subject, question, scratch, cache))
    fingerprints = [launcher.conversions.fingerprint, *subject.digests(), f"seed {subject.seed}"]
    journal = Journal(journal_folder(fingerprints, question, environment), Trial)
    stack.enter_context(journal.held())
    if fresh:
        journal.discard()
    accuracy = subject.accuracy()
    search = Search(
        subject.servable,
        question,
        space,
        launcher,
        journal,
        scratch,
        watcher,
        given=subject.inputs,
        seed=subject.seed,
        labels=_stored(subject, scratch, accuracy, question),
        command=lambda plan, batch: subject.command(plan, batch, question),
    )
    doubts = [] if answers_vary(subject.servable) else [ANSWERS_ALIKE]
    if held:
        doubts.append(OWN_CONSTANTS)
    elif subject.graph_only:
        doubts.append(NO_CODE)
    ended: Literal["finished", "time limit", "interrupted"] = "finished"
    try:
        search.run()
    except KeyboardInterrupt:
        ended = "interrupted"
        doubts.append(NOT_CONFIRMED)
    if search.ran_out_of_time and ended == "finished":
        ended = "time limit"
    outcome = Outcome(
        model=subject.servable.name,
        opened_as=printable(subject.opened_as),
        signature=None if subject.signature is None else printable(subject.signature),
        seed=subject.seed,
        inputs=_source(subject.inputs, subject.inputs_file),
        labels=_source(subject.labels, subject.labels_file),
        question=question,
        seconds=time.monotonic() - began,
        ended=ended,
        reference_accuracy=accuracy,
        doubts=tuple(doubts),
        **search.found._asdict(),
    )
    return Tuned(outcome, subject.servable, subject.inputs, journal, cache)


def _launcher(subject: Subject, question: Question, scratch: Path, cache: Path | None) -> Launcher:
    return Launcher(
        subject.servable,
        subject.origin,
        scratch,
        representative=subject.inputs,
        cache=cache,
        deadline=question.trial_seconds,
        memory_limit=min(question.memory_limit, int(MEMORY_SHARE * available_memory())),
        graph_only=subject.graph_only,
    )


def _stored(subject: Subject, scratch: Path, accuracy: float | None, question: Question) -> Labels | None:
    if accuracy is None or subject.inputs is None or subject.labels is None:
        return None
    return Labels(
        inputs=store_arrays(scratch / "labelled.npz", subject.inputs),
        labels=store_arrays(scratch / "labels.npz", subject.labels),
        least=round(accuracy - (question.accuracy_drop or 0.0), 12),  # 0.8 - 0.1 is a little more than 0.7
    )


def _source(arrays: Sequence[Any] | None, file: str | None) -> str | None:
    """The file that arrays were read from, as an outcome keeps it."""
    return None if arrays is None else printable(file or FROM_PYTHON)


def _asked(**fields: Any) -> Question:
    try:
        return Question(**fields)
    except ValidationError as error:
        (first, *_) = error.errors()
        words = [*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")]
        raise ValueError(": ".join(words)) from error


def _in_order(known: Sequence[Choice], given: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those that are given, in the order of those that are known; unknown ones, for `Question` to refuse, last."""
    return (*(one for one in known if one in given), *(one for one in given if one not in known))


def _numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(sorted(set(given)))


def _doubles(cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all cores."""
    return (*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores)


class _Quiet:
    """A watcher that says nothing."""

    def phase(self, words: str) -> None:
        pass

    def looked(self, trial: Trial, best: Trial | None, left: int) -> None:
        pass

    def measuring(self, progress: Progress) -> None:
        pass
