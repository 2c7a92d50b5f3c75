"""What `mnist_hvd_elastic` shows, that it listens on loopback only, and that all it starts ends with it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.marked import MARK, end_marked, listening, marked
from tfperf.measure.results import Result

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "mnist_hvd_elastic.py"
DEADLINE = 270
"""Seconds after which a process is killed; it means a hang, not a speed."""


class Started:
    """A process that runs in a folder, with all it starts."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=kept | {MARK: self.mark, "TMPDIR": str(folder), "COLUMNS": "300"},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def left(self) -> list[psutil.Process]:
        """What runs yet of the process and all it started."""
        return marked(self.mark)

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until something has happened, while the process runs."""
        for _ in range(10 * DEADLINE):
            if happened():
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                break
        pytest.fail(f"ended with {self.process.returncode} before it happened: {self.errors()}")

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def end(self) -> None:
        end_marked(self.mark)
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """A function that starts a command; it and all that it starts end with the test."""
    started: list[Started] = []

    def start(*command: str, folder: Path = tmp_path) -> Started:
        started.append(Started(list(command), folder))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def run(tmp_path_factory, check_result) -> tuple[Result, str, set[tuple[str, str]]]:
    """The recipe's result with --quick, what it printed, and (program, address) of all that listened meanwhile."""
    folder = tmp_path_factory.mktemp("run")
    started = Started([sys.executable, str(RECIPE), "--quick"], folder)
    listened: set[tuple[str, str]] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for process in started.left():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    program = program_of(process)
                    listened.update((program, address) for _, address in listening([process]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        code = started.process.wait(DEADLINE)
    finally:
        over.set()
        watcher.join()
        left = started.left()
        started.end()
    assert code == 0, started.errors()[-2000:]
    assert left == []
    printed = (folder / "stdout").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["results", "stderr", "stdout"], "it cleans up after it"
    return check_result("mnist_hvd_elastic", folder, printed), printed, listened


def program_of(process: psutil.Process) -> str:
    """Which part of the recipe a process is."""
    if "launch" in process.cmdline() and "tfperf" in process.cmdline():
        return "launcher"
    return "worker" if process.environ().get("HOROVOD_ELASTIC") == "1" else "conductor"


def test_each_batch_counts_once_though_some_were_computed_twice(run) -> None:
    result, _, _ = run
    ledger, weights = result.agreements
    assert ledger.candidate.startswith("ledger")
    assert ledger.largest_absolute_error == 0
    assert weights.candidate.startswith("weights")
    assert weights.passed
    assert 1 <= result.facts["batches computed twice, counted once"] <= 7  # from the commit at 40 to the death at 47
    counted_twice = result.facts["relative error of the weights if those batches had counted twice"]
    assert counted_twice > 1e4 * weights.tolerance, "the check could not have failed"
    assert result.facts["test accuracy: elastic"] == pytest.approx(result.facts["test accuracy: one process"], abs=1e-3)
    assert result.facts["test accuracy: elastic"] > 0.6  # ten classes, so chance is 0.1


def test_it_tells_what_the_death_the_joining_and_a_commit_cost(run) -> None:
    result, printed, _ = run
    death, until_again, joining = (
        result.facts[f"seconds {what}"]
        for what in (
            "from the death to the next batch",
            "from the death until the lost batches are done again",
            "without a batch while the third worker joined",
        )
    )
    assert 0 < death < until_again < joining  # a new process imports TensorFlow, one that is left does not
    assert [m.name for m in result.comparisons[0].measurements] == ["training step", "state.commit()"]
    for words in ("Training went on.", "The death cost ", "The joining cost ", "A commit costs "):
        assert words in printed


def test_it_listens_on_loopback_only(run) -> None:
    _, _, listened = run
    assert {"launcher", "worker"} <= {program for program, _ in listened}, "the watch saw nothing"
    assert {address for _, address in listened} <= {"127.0.0.1", "::1"}


def test_interrupted_in_the_middle_it_leaves_no_process_and_no_result(start, tmp_path: Path) -> None:
    started = start(sys.executable, str(RECIPE), "--quick")
    started.until(lambda: any(notes.stat().st_size for notes in tmp_path.glob("*/*.notes")))
    assert len(started.left()) > 3, "conductor, launcher, keepers, workers"
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(60) == 130
    assert started.left() == []
    assert started.errors().splitlines()[-1] == "mnist_hvd_elastic: interrupted; nothing was written"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_workers_that_fail_are_told_in_one_line(start, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "horovod.py").write_text("raise ImportError('broken on purpose')\n")  # comes before the real one
    code = f"import os, runpy, sys; os.environ['PYTHONPATH'] = {str(broken)!r}; sys.argv = [{str(RECIPE)!r}, '--quick']"
    started = start(sys.executable, "-c", f"{code}; runpy.run_path(sys.argv[0], run_name='__main__')")
    assert started.process.wait(DEADLINE) == 2
    assert started.left() == []
    last = started.errors().splitlines()[-1]
    assert last.startswith("mnist_hvd_elastic: the workers failed, ")
    assert "broken on purpose" in last


def test_a_batch_that_cannot_be_shared_out_is_refused(start) -> None:
    started = start(sys.executable, str(RECIPE), "--batch", "100")
    assert started.process.wait(DEADLINE) == 2
    assert "Traceback" not in started.errors()
    assert "--batch 100" in started.errors().splitlines()[-1]


def test_under_a_launcher_it_is_a_worker(start, tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:1\n")
    script.chmod(0o700)
    launcher = [sys.executable, "-m", "tfperf", "launch", "-np", "1", "--min-np", "1", "--host-discovery-script"]
    started = start(*launcher, str(script), sys.executable, str(RECIPE), "--quick", "--data", "digits")
    assert started.process.wait(DEADLINE) == 0, started.errors()
    batches = 2 * 1437 // 96  # two epochs of the digits
    assert f"{batches} batches counted, by workers: {{1: {batches}}}" in (tmp_path / "stdout").read_text()
    assert not list(tmp_path.rglob("*.notes"))
