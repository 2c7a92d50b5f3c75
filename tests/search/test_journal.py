"""What a search has finished, on disk."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from importlib import metadata

import pytest

from tfperf.engines.catalog import ENGINES, Engine
from tfperf.engines.plan import Plan
from tfperf.errors import SearchError
from tfperf.search.journal import Journal, Round, journal_folder
from tfperf.trials.host import Child
from tfperf.trials.process import EngineProcess
from tfperf.trials.side_by_side import failed_trial
from tfperf.trials.trial import Status, Trial, TrialError


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tune" / "a"


@pytest.fixture
def trials(tried):
    return [tried("onnx", threads=1), tried("litert", status=Status.WRONG), tried("xla_aot", batch=4)]


def test_trials_are_there_again(place, trials):
    journal = Journal(place, Trial)
    for trial in trials:
        journal.add(trial)
    again = Journal(place, Trial)
    assert len(again) == len(journal) == 3
    for trial in trials:
        assert journal.trial(trial.name) == again.trial(trial.name) == trial
    assert again.trial("graph, batch 1") is None
    assert not list(place.glob("*.part"))


def test_a_trial_is_kept_once(place, trials, tried):
    journal = Journal(place, Trial)
    journal.add(trials[0])
    journal.add(later := tried("onnx", 2e-3, threads=1))
    assert Journal(place, Trial).trial(later.name) == later
    assert len(list(place.iterdir())) == len(Journal(place, Trial)) == 1


def test_rounds_are_there_again_by_stage_and_names(place, trials, compared):
    names = [trials[0].name, trials[2].name]
    finished = Round(trials=tuple(trials), comparison=compared(dict.fromkeys(names, 1e-3)))
    Journal(place, Trial).add_round("final", names, finished)
    journal = Journal(place, Trial)
    assert journal.round("final", names) == journal.round("final", names[::-1]) == finished
    assert journal.round("confirmation", names) is None
    assert journal.round("final", names[:1]) is None
    journal.add_round("round", names, alone := Round(trials=(trials[1],), comparison=None))
    assert Journal(place, Trial).round("round", names) == alone
    assert len(Journal(place, Trial)) == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"\xff\x00"),
        lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "batch": "1"})),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["cut", "empty", "no text", "mistyped", "folder"],
)
def test_what_cannot_be_read_counts_as_not_done(place, trials, spoil, compared):
    journal = Journal(place, Trial)
    for trial in trials:
        journal.add(trial)
    journal.add_round("final", ["a", "b"], Round(trials=(), comparison=compared({"a": 1.0, "b": 1.0})))
    (file,) = (file for file in place.glob("trial-*") if json.loads(file.read_text())["plan"]["engine"] == "litert")
    spoil(file)
    (final,) = place.glob("final-*")
    final.write_text("{")
    again = Journal(place, Trial)
    assert [again.trial(trial.name) for trial in trials] == [trials[0], None, trials[2]]
    assert again.round("final", ["a", "b"]) is None


def test_everything_is_forgotten(place, trials):
    journal = Journal(place, Trial)
    journal.add(trials[0])
    journal.add_round("final", ["a"], Round(trials=(), comparison=None))
    journal.discard()
    assert len(journal) == len(Journal(place, Trial)) == 0
    assert journal.round("final", ["a"]) is None
    journal.add(trials[1])
    assert Journal(place, Trial).trial(trials[1].name) == trials[1]


def test_the_folder_is_of_one_net_question_and_machine(place, asked, environment):
    def folder(*fingerprints, **fields):
        return journal_folder(fingerprints or ("net", "array"), asked(**fields), environment)

    same = folder()
    assert same == folder()
    assert same.parent == place.parent
    assert folder(time_limit=7.0) == same  # with more time the same search goes on
    others = [folder("net"), folder("array", "net"), folder("net", "array", "more"), folder("net2", "array")]
    others += [folder(tolerance=1e-3), folder(threads=(1, 2)), folder(engines=("honest",)), folder(batches=(2,))]
    others += [
        folder(objectives=("size",)),
        folder(accuracy_drop=0.1),
        folder(trial_seconds=9.0),
        folder(same_top1=True),
    ]
    assert len({same, *others}) == 1 + len(others)

    def elsewhere(**changes):
        return journal_folder(("net", "array"), asked(), environment.model_copy(update=changes))

    assert elsewhere(git_revision="0123456789ab+", frequency_governor="powersave", accelerators=("a",)) == same
    packages = environment.packages | {"keras": "0.1"}
    changed = [
        elsewhere(packages=packages),
        elsewhere(usable_cores=99),
        elsewhere(cpu="another"),
        elsewhere(python="2"),
    ]
    assert len({same, *changed}) == 5


@pytest.fixture
def installed(monkeypatch):
    """Versions of what is installed, as the journal sees it, which a test may change."""
    versions = {"tensorflow": "2.21", "onnxruntime": "1.23"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"kernels": ["fast-kernels"]})
    return versions


def test_the_folder_is_of_the_versions_that_the_engines_need(place, asked, environment, installed, monkeypatch):
    """What `Environment` does not tell: converters, and packages of engines of other packages."""

    def folders(release="mine 1"):
        mine = Engine("mine", "", ("float32",), packages=("kernels",), module="mine", release=release)
        monkeypatch.setattr("tfperf.search.journal.known_engines", lambda: (*ENGINES, mine))
        questions = [asked(engines=engines) for engines in (("onnx",), ("mine",), ("litert", "frozen"))]
        return [journal_folder(("net",), question, environment) for question in questions]

    def changed():
        return [one != other for one, other in zip(before, folders(), strict=True)]

    before = folders()
    assert len(set(before)) == 3
    assert changed() == [False, False, False]
    installed["tf2onnx"] = "1.17"
    assert changed() == [True, False, False]
    with_tf2onnx = folders()
    installed["tf2onnx"] = "1.18"
    assert folders()[0] not in (before[0], with_tf2onnx[0])
    installed["fast-kernels"] = "3"
    assert changed() == [True, True, False]
    del installed["tf2onnx"], installed["fast-kernels"]
    assert changed() == [False, False, False]
    assert folders("mine 2")[1] != before[1]


HOLD = """
import sys
from pathlib import Path
from tfperf.errors import SearchError
from tfperf.search.journal import Journal
from tfperf.trials.trial import Trial
try:
    with Journal(Path(sys.argv[1]), Trial).held():
        print("held", flush=True)
        sys.stdin.read()
except SearchError as error:
    print(error)
"""


@pytest.fixture
def hold(place):
    """A function that starts a process which wants to hold the journal until its input ends."""
    started = []

    def hold():
        command = [sys.executable, "-c", HOLD, str(place)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.communicate(timeout=60)


REFUSED = "this net is being tuned by another process; wait for it, or end it"


def test_only_one_process_searches_for_the_same(place, hold):
    with Journal(place, Trial).held():
        assert hold().communicate(timeout=60)[0] == f"{REFUSED}\n"
    process = hold()
    assert process.stdout.readline() == "held\n"
    with pytest.raises(SearchError, match=f"^{REFUSED}$"), Journal(place, Trial).held():
        pytest.fail("two at once")
    process.kill()  # as the kernel ends it, its lock goes too
    process.wait(60)
    with Journal(place, Trial).held():
        pass


def test_what_forgets_everything_is_still_alone(place, hold, trials):
    journal = Journal(place, Trial)
    with journal.held():
        journal.add(trials[0])
        journal.discard()
        journal.add(trials[1])
        assert hold().communicate(timeout=60)[0] == f"{REFUSED}\n"
    assert len(Journal(place, Trial)) == 1


def test_a_lock_ends_with_an_error_too(place, hold):
    with pytest.raises(ZeroDivisionError), Journal(place, Trial).held():
        raise ZeroDivisionError
    with Journal(place, Trial).held():
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_keeps_nobody_from_searching(place, trials, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    journal = Journal(place, Trial)
    with journal.held():
        journal.add(trials[0])
    assert len(Journal(place, Trial)) == 1


def test_a_disk_that_is_full_at_any_moment_loses_nothing_but_the_entry_in_flight(small_disk, trials):
    folder = small_disk.root / "tune" / "a"
    Journal(folder, Trial).add(trials[0])
    before = (folder / next(folder.iterdir()).name).read_bytes()
    failed = 0
    for full in small_disk.fuller_to_emptier():
        journal = Journal(folder, Trial)
        try:
            with journal.held():
                journal.add(trials[1])
                journal.add_round("final", ["a"], Round(trials=tuple(trials), comparison=None))
        except OSError as error:
            failed, told = failed + 1, error
            assert told.errno == errno.ENOSPC, full
            assert not list(folder.glob(".*")), full
        again = Journal(folder, Trial)
        assert again.trial(trials[0].name) == trials[0], full
        assert again.trial(trials[1].name) == journal.trial(trials[1].name), full
        assert again.round("final", ["a"]) in (None, Round(trials=tuple(trials), comparison=None)), full
        (kept,) = (file for file in folder.iterdir() if file.read_bytes() == before)
        for file in folder.iterdir():
            if file != kept:
                file.unlink()
    assert failed > 2


MOMENTS = [
    (Status.MISSING, "onnx is missing (tf2onnx); pip install 'tfperf[onnx]'"),
    (Status.OUT_OF_MEMORY, "onnx: took more than 0.5 GiB of memory; its process was ended"),
    (Status.OUT_OF_MEMORY, "MemoryError: bad allocation"),
    (Status.CRASHED, "onnx: its process was killed by SIGKILL, as Linux does where memory runs out"),
    (Status.CRASHED, "onnx, while it was converted: its process was killed by SIGTERM: last words"),
    (Status.REFUSED, "onnx: OSError: [Errno 28] No space left on device: '/cache/x'"),
]
LASTING = [
    (Status.CRASHED, "onnx: its process was killed by SIGSEGV"),
    (Status.CRASHED, "onnx: its process ended with exit code 7: out of luck"),
    (Status.REFUSED, "onnx takes no nets that were killed by SIGKILL"),
    (Status.TIMED_OUT, "onnx: no answer within 300 s; its process was ended"),
    (Status.WRONG, "wrong answers: onnx DISAGREES"),
    (Status.NOT_TRIED, "batch 1 takes longer than the limit already"),
]


@pytest.mark.parametrize(("status", "reason"), [*MOMENTS, *LASTING])
def test_a_failure_of_the_moment_is_tried_again_and_no_other(place, tried, status, reason):
    trial = tried("onnx", status=status).model_copy(update={"reason": reason})
    journal = Journal(place, Trial)
    journal.add(trial)
    kept = trial if (status, reason) in LASTING else None
    assert journal.trial(trial.name) == Journal(place, Trial).trial(trial.name) == kept
    journal.add_round("final", [trial.name], found := Round(trials=(tried("litert"), trial), comparison=None))
    assert journal.round("final", [trial.name]) == (found if kept else None)


def test_a_process_that_was_killed_is_told_so_that_its_plan_is_tried_again(place):
    plan = Plan(engine="onnx")
    with EngineProcess(plan, Child()) as process:
        os.kill(process.host.pid, signal.SIGKILL)
        with pytest.raises(TrialError, match="killed by SIGKILL") as told:
            process.ask("memory")
    trial = failed_trial(plan, 1, told.value)
    journal = Journal(place, Trial)
    journal.add(trial)
    assert (trial.status, len(journal)) == (Status.CRASHED, 0)


def test_what_a_killed_search_left_half_written_goes(place, trials, monkeypatch):
    Journal(place, Trial).add(trials[0])
    (place / ".trial-x.json.12345678.part").touch()
    monkeypatch.setattr("tfperf.files.GRACE", -1.0)
    assert len(Journal(place, Trial)) == len(list(place.iterdir())) == 1
