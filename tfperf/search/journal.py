"""Finished trials on disk, so that a search which was killed goes on where it was."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from tfperf.caching import cache_folder, remove_given_up
from tfperf.engines.catalog import known_engines
from tfperf.errors import SearchError
from tfperf.files import remove_parts, writing_whole
from tfperf.measure import Comparison, Environment
from tfperf.measure.value import Value
from tfperf.search.question import Question
from tfperf.trials.trial import AnyTrial, Status, Trial

__all__ = ["Journal", "Round", "journal_folder"]

Kind = TypeVar("Kind", bound=AnyTrial)

Note = TypeVar("Note", bound=Value)

OF_THE_MOMENT = (Status.MISSING, Status.OUT_OF_MEMORY)
"""What may come out otherwise when the search goes on: a package of another engine, or more memory, is there then."""

KILLED = re.compile(r"\bits process was killed by SIG(HUP|INT|KILL|TERM)\b")
"""How `tfperf.trials.host` says that a process was killed from outside: by somebody, or by Linux for its memory."""


class Round(Value):
    """Trials measured in turns, and what that showed."""

    trials: tuple[Trial, ...]
    comparison: Comparison | None


def journal_folder(fingerprints: Sequence[str], question: Value, environment: Environment) -> Path:
    """The folder of a search: another net, question, machine, or version of a package that matters has another.

    Args:
        fingerprints: of the net and of all arrays that are given with it.
        question: with a field `time_limit`, which makes no difference.

    Raises:
        CacheError: there is no place for the cache, or others could change what is in it.
        EngineError: an installed package brings an engine that is none.
    """
    question = question.model_copy(update={"time_limit": None})  # with more time the same search goes on
    place = environment.model_dump(exclude={"git_revision", "frequency_governor", "accelerators"})
    made_from = [*fingerprints, question.model_dump_json(), json.dumps(place, sort_keys=True), *_releases(question)]
    return cache_folder("tune") / hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:32]


class Journal(Generic[Kind]):
    """What a search has finished, a file for each trial and each round."""

    def __init__(self, folder: Path, kind: type[Kind]) -> None:
        """Read what is there; what cannot be read counts as not done.

        Args:
            kind: of its trials.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
        self._trials: dict[str, Kind] = {trial.name: trial for trial in self._read("trial-*.json", kind)}

    def trial(self, name: str) -> Kind | None:
        """A finished trial."""
        return self._trials.get(name)

    def __len__(self) -> int:
        """How many trials are finished."""
        return len(self._trials)

    def add(self, trial: Kind) -> None:
        """Keep a trial that is finished.

        A failure of the moment says nothing of the plan, which is tried again: the disk was full, too little memory was
        free, a package was not installed, or the process was killed from outside.

        Raises:
            OSError: the disk is full.
        """
        if _failed_for_the_moment(trial):
            return
        self._write(f"trial-{_key(trial.name)}.json", trial)
        self._trials[trial.name] = trial

    def round(self, stage: str, names: Sequence[str]) -> Round | None:
        """A round that was finished with these trials."""
        return self.note(stage, names, Round)

    def add_round(self, stage: str, names: Sequence[str], finished: Round) -> None:
        """Keep a round; one with a failure of the moment is measured again when the search goes on.

        Raises:
            OSError: the disk is full.
        """
        if not any(map(_failed_for_the_moment, finished.trials)):
            self.add_note(stage, names, finished)

    def note(self, what: str, names: Sequence[str], kind: type[Note]) -> Note | None:
        """What was noted under this word of these names."""
        return next(self._read(f"{what}-{_key(*sorted(names))}.json", kind), None)

    def add_note(self, what: str, names: Sequence[str], value: Value) -> None:
        """Keep a value under a word, for these names.

        Raises:
            OSError: the disk is full.
        """
        self._write(f"{what}-{_key(*sorted(names))}.json", value)

    def discard(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._trials.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else searches for the same meanwhile, where the file system has locks; journals given up by others go.

        Raises:
            SearchError: somebody does.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        beside = self.folder.with_name(f"{self.folder.name}.lock")  # so that to discard the folder frees nobody
        with beside.open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SearchError("this net is being tuned by another process; wait for it, or end it") from error
            except OSError:
                pass  # it has none: at worst two searches do the same
            remove_given_up(self.folder.parent)  # not this one, which is held
            yield

    def _read(self, pattern: str, kind: type[Note]) -> Iterator[Note]:
        for file in self.folder.glob(pattern):
            with contextlib.suppress(OSError, ValidationError):
                yield kind.model_validate_json(file.read_bytes())

    def _write(self, name: str, value: Value) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with writing_whole(self.folder / name) as file:
            file.write(value.model_dump_json().encode())


def _releases(question: Value) -> list[str]:
    """Versions of the packages that the engines of a question need, as far as they are installed, in order."""
    if not isinstance(question, Question):
        return []
    engines = [engine for engine in known_engines() if engine.name in question.engines]
    names: set[str] = set()
    for engine in engines:
        names.update(engine.converters, *engine.quantizers.values(), *engine.programs.values())
    if imported := {package for engine in engines if engine.release for package in engine.packages}:
        known = metadata.packages_distributions()  # which takes long
        names.update(*(known.get(package, ()) for package in imported))
    releases = {engine.release for engine in engines}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            releases.add(f"{name} {metadata.version(name)}")
    return sorted(releases)


def _failed_for_the_moment(trial: AnyTrial) -> bool:
    """Whether a trial failed for what has nothing to do with its plan, and may be otherwise the next time."""
    if trial.status is Status.RAN:
        return False
    full = os.strerror(errno.ENOSPC) in trial.reason
    return full or trial.status in OF_THE_MOMENT or KILLED.search(trial.reason) is not None


def _key(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]
