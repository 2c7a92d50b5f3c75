"""`tfperf tune`: what it prints and writes, that bad input writes nothing, and that no end of it leaves a process."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.fixtures.engines import DENSE, gone
from tfperf.cli import main
from tfperf.measure.results import read_document
from tfperf.search.outcome import Outcome
from tfperf.tuning.deploying import load_deployed

DRIVER = """
import sys
from tfperf.importing import load_tensorflow
load_tensorflow()
import tfperf.search.space as space
import tfperf.search.strategy as strategy
space.DEFAULTS = ()  # they start TensorFlow, twice
strategy.FINAL_SECONDS = strategy.FINAL_SECONDS._replace(value=1.0)
strategy.LOOK_SECONDS = strategy.LOOK_SECONDS._replace(value=0.1)
from tfperf.cli import main
main(["tune", *sys.argv[1:]])
"""
"""`tfperf tune` as it is, with short measurements."""

KILLED_DRIVER = (
    """
import os, signal
from tfperf.cli.tune_display import Display
looked, trials = Display.looked, []
def killed(display, trial, *others):
    looked(display, trial, *others)
    trials.append(trial)
    if len(trials) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Display.looked = killed
"""
    + DRIVER
)
"""The same, killed when two trials are finished."""

SECONDS = 240
"""For a process to end, on a machine that does much else."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A cache for all tests here, so that each conversion is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def code(tmp_path, monkeypatch, kept, planted):
    """The net for planted engines, in the working folder."""
    monkeypatch.setenv("TFPERF_CACHE", str(kept))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dense.py").write_text(DENSE)
    return "dense.py:build"


@pytest.fixture
def started(code, tmp_path):
    """A function that starts `tfperf tune` in a process of its own, with files as it tells of its end."""
    running = []

    def started(*options, driver=DRIVER, **streams):
        command = [sys.executable, "-c", driver, code, "--threads", "1", "--memory-limit", "4GiB", *options]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | streams
        running.append(subprocess.Popen(command, cwd=tmp_path, **streams))
        return running[-1]

    yield started
    for process in running:
        process.kill()
        with contextlib.suppress(ValueError):  # its streams were read to their end
            process.communicate(timeout=60)


def ended(process):
    """Exit code, lines of JSON, and standard error."""
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def trials_of(lines):
    return [line["trial"] for line in lines if "trial" in line]


def journals(kept):
    return {file: file.stat().st_mtime_ns for file in (kept / "tune").rglob("*.json")}


def test_elsewhere_than_on_a_terminal_all_is_json(started, planted, tmp_path, kept):
    options = ["--engine", "honest,light,wrong,segfault", "--json", "deep/r.json", "--report", "r.md", "--export", "d"]
    code, lines, err = ended(started(*options))
    assert (code, err) == (0, "")
    assert sorted(trials_of(lines)) == [
        f"{name}, 1 thread, batch 1" for name in ("honest", "light", "segfault", "wrong")
    ]
    by_name = {line["trial"].split(",")[0]: line for line in lines[:-1]}
    assert by_name["honest"]["status"] == "ran"
    assert 0.0002 <= by_name["honest"]["low"] <= by_name["honest"]["seconds"] <= by_name["honest"]["high"]
    assert by_name["wrong"]["status"] == "wrong answers"
    assert by_name["segfault"]["reason"].startswith("segfault, 1 thread: its process was killed by SIGSEGV")
    last = lines[-1]
    assert set(last) == {"answer", "winner", "equals", "ended", "seconds", "files"}
    assert (last["winner"], last["equals"], last["ended"]) == ("honest, 1 thread, batch 1", [], "finished")
    assert last["files"] == ["deep/r.json", "r.md", "d"]
    outcome = read_document(tmp_path / "deep" / "r.json", Outcome)
    assert (outcome.winner, outcome.opened_as, outcome.question.memory_limit) == (
        last["winner"],
        "dense.py:build",
        2**32,
    )
    assert outcome.trial("wrong, 1 thread, batch 1").command == (
        "tfperf engines dense.py:build --engine wrong --precision float32 --threads 1 --batch 1 --tolerance 0.0001"
    )
    assert (tmp_path / "r.md").read_text().startswith("# tfperf tune: dense")
    assert load_deployed(tmp_path / "d").plan == outcome.best.plan
    assert planted.nothing_left()
    assert journals(kept) == {}


def test_a_result_that_cannot_be_written_is_told_and_kept(started, tmp_path):
    place = tmp_path / "results" / "tune_dense.json"
    place.mkdir(parents=True)
    options = ["--engine", "honest,light"]
    code, lines, err = ended(started(*options))
    assert code == 2
    assert lines[-1]["winner"] == "honest, 1 thread, batch 1"
    assert lines[-1]["files"] == []
    assert len(err.splitlines()) == 1
    assert "tune_dense.json: Is a directory; what the search found is kept" in err
    place.rmdir()
    code, lines, err = ended(started(*options))
    assert (code, err, trials_of(lines)) == (0, "", [])
    assert lines[-1]["files"] == ["results/tune_dense.json"]


def test_a_search_that_was_killed_goes_on_where_it_was(started, planted, kept, tmp_path):
    names = ("equal", "forker", "honest", "light", "reads", "wrong")
    options = ["--engine", ",".join(names), "--tolerance", "2e-4", "--json", "r.json"]
    code, told, _ = ended(started(*options, driver=KILLED_DRIVER))
    assert code == -signal.SIGKILL
    assert gone(planted.left)
    before = journals(kept)
    assert len(before) == len(told) == 2
    assert not (tmp_path / "r.json").exists()

    second = started(*options, "--time-limit", "600")
    first = second.stdout.readline()
    assert {file: when for file, when in journals(kept).items() if file in before} in ({}, before)
    code, lines, err = ended(second)
    lines = [json.loads(first), *lines]
    assert (code, err) == (0, "")
    assert not set(trials_of(lines)) & set(trials_of(told))
    assert len(before) + len(trials_of(lines)) == len(names)
    assert lines[-1]["winner"].split(",")[0] in ("equal", "forker", "honest", "reads")
    outcome = read_document(tmp_path / "r.json", Outcome)
    assert sorted(trial.plan.engine for trial in outcome.trials) == list(names)
    assert planted.nothing_left()
    assert journals(kept) == {}


def test_ctrl_c_gives_the_best_so_far_of_the_one_search_at_a_time(started, planted, kept, tmp_path):
    options = ["--engine", "honest,light,hang_in_call,hang_in_build", "--tolerance", "3e-4", "--json", "r.json"]
    process = started(*options)
    first = [json.loads(process.stdout.readline()) for _ in range(2)]  # the others hang
    refusal = "tfperf: this net is being tuned by another process; wait for it, or end it\n"
    assert ended(started(*options)) == (2, [], refusal)
    process.send_signal(signal.SIGINT)
    code, lines, err = ended(process)
    assert (code, err) == (130, "tfperf: interrupted\n")
    assert (lines[-1]["ended"], lines[-1]["winner"]) == ("interrupted", "honest, 1 thread, batch 1")
    assert lines[-1]["answer"].startswith("Best so far, interrupted, not confirmed: ")
    assert planted.nothing_left()
    outcome = read_document(tmp_path / "r.json", Outcome)
    assert [doubt.name for doubt in outcome.doubts] == ["not_confirmed"]
    assert len(journals(kept)) == 2
    again = started(*options, "--fresh", "--trial-time", "300")
    second = [json.loads(again.stdout.readline()) for _ in range(2)]
    assert (
        sorted(trials_of(second))
        == sorted(trials_of(first))
        == [f"{name}, 1 thread, batch 1" for name in ("honest", "light")]
    )
    again.send_signal(signal.SIGINT)
    assert ended(again)[0] == 130
    assert planted.nothing_left()


def test_where_nothing_runs_the_files_say_so(started, tmp_path):
    code, lines, err = ended(started("--engine", "nan", "--json", "r.json", "--export", "d"))
    assert (code, err) == (1, "")
    assert (lines[-1]["winner"], lines[-1]["files"]) == (None, ["r.json"])
    assert lines[-1]["answer"].startswith("No plan ran")
    assert read_document(tmp_path / "r.json", Outcome).winner is None
    assert not (tmp_path / "d").exists()


def on_terminal(start):
    """All that a process shows on a terminal of its own, and its exit code."""
    ours, theirs = pty.openpty()
    try:
        process = start(stdout=theirs, stdin=theirs)
        os.close(theirs)
        theirs = None
        shown, until = b"", time.monotonic() + SECONDS
        while time.monotonic() < until:
            if select.select([ours], [], [], 1.0)[0]:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # Linux: the other end was closed
                    break
                shown += piece
        return shown.decode(), process.wait(SECONDS)
    finally:
        os.close(ours)
        if theirs is not None:
            os.close(theirs)


def test_on_a_terminal_a_table_lives_and_the_answer_stays(started, planted, monkeypatch):
    for name, value in {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    options = ["--engine", "honest,light,wrong", "--tolerance", "4e-4", "--json", "r.json"]
    shown, code = on_terminal(lambda **streams: started(*options, **streams))
    assert code == 0, shown
    assert '{"trial"' not in shown
    hidden, up, erase = "\x1b[?25l", "\x1b[1A", "\x1b[2K"
    assert shown.index(hidden) < shown.index("opening the model") < shown.index("trying the engines")
    assert "Ctrl-C ends with the best so far" in shown
    live, shows, kept = shown.rpartition("\x1b[?25h")  # the cursor comes back when the table is taken away
    assert shows
    assert up in live
    assert erase in live
    assert "\x1b[?25l" not in kept
    answer = kept[kept.index("onest, 1 thread: ") - 1 :]
    assert "Ctrl-C" not in answer
    assert "a call" in answer
    assert "wrong answers" in answer
    assert "written: r.json" in answer


def test_the_help_loads_no_tensorflow(tfperf_command):
    told = tfperf_command("tune", "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "Find the fastest correct way to run a model on this machine" in told.stdout
    for option in ("--objective", "--batch", "--tolerance", "--accuracy-drop", "--time-limit", "--export", "--fresh"):
        assert option in told.stdout
    look = "import sys; from tfperf.cli import main\ntry: main(['tune', '--help'])\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=SECONDS, check=True)
    loaded = done.stdout.splitlines()[-1]
    for name in ("tensorflow", "keras", "numpy"):
        assert f"'{name}'" not in loaded


@pytest.fixture
def wrong(tmp_path):
    """A folder of files that are no good, and some that are."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    rows = np.ones((2, 8), "float32")
    np.savez(folder / "in.npz", x=rows)
    np.savez(folder / "name.npz", z=rows)
    np.savez(folder / "shape.npz", x=rows[:, :5])
    np.savez(folder / "empty.npz", x=rows[:0])
    np.savez(folder / "long.npz", y=np.zeros(3, int))
    np.savez(folder / "range.npz", y=np.full(2, 4))
    np.savez(folder / "labels.npz", y=np.zeros(2, int))
    (folder / "text.npz").write_text("no arrays")
    (folder / "full").mkdir()
    (folder / "full" / "mine").write_text("mine")
    return folder


LABELLED = ["--inputs", "{wrong}/in.npz", "--accuracy-drop", "1%", "--labels"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "Received: nonsense"),
        (["{code}x"], "expected a function"),
        (["{code}", "--engine", "torch"], "Received: torch"),
        (["{code}", "--engine", ""], "--engine"),
        (["{code}", "--objective", "speed"], "Received: speed"),
        (["{code}", "--objective", "size,latency,cost"], "Received: cost"),
        (["{code}", "--precision", "float64"], "Received: float64"),
        (["{code}", "--transform", "prune"], "Received: prune"),
        (["{code}", "--batch", "0"], "--batch"),
        (["{code}", "--batch", "9" * 5000], "expected --batch to be whole numbers"),
        (["{code}", "--batch", "1:" + "9" * 5000], "expected --batch as 1,8,32"),
        (["{code}", "--batch", "1:"], "expected --batch as 1,8,32 or 1:256. Received: 1:"),
        (["{code}", "--batch", "1,8"], "expected one batch size for the latency of a call"),
        (["{code}", "--threads", "0"], "--threads"),
        (["{code}", "--threads", "default"], "--threads"),
        (["{code}", "--tolerance", "-1"], "--tolerance"),
        (["{code}", "--tolerance", "nan"], "tolerance"),
        (["{code}", "--tolerance", "inf"], "tolerance: Input should be a finite number"),
        (["{code}", "--latency-limit", "5"], "expected --latency-limit to be a time, as 5ms"),
        (["{code}", "--memory-limit", "much"], "expected --memory-limit to be a size"),
        (["{code}", "--trial-time", "0"], "--trial-time"),
        (["{code}", "--time-limit", "0"], "--time-limit"),
        (["{code}", "--report", "r.pdf"], "r.pdf"),
        (["{code}", "--report", "{wrong}/text.npz/r.md"], "r.md"),
        (["{code}", "--export", "{wrong}/full"], "expected a new folder for --export"),
        (["{code}", "--export", "{wrong}/text.npz"], "expected a new folder for --export"),
        (["{code}", "--export", "{wrong}/text.npz/d"], "--export: cannot write"),
        (["{code}", "--json", "{wrong}"], "--json: expected a file"),
        (["{code}", "--json", "{wrong}/text.npz/r.json"], "--json: cannot write"),
        (["{code}", "--json", "n" * 240], "--json: expected a file name of at most 230 bytes"),
        (["{code}", "--json", "n" * 300 + "/r.json"], "File name too long"),
        (["{code}", "--export", "n" * 300], "File name too long"),
        (["{code}", "--inputs", "{wrong}/none.npz"], "cannot be read"),
        (["{code}", "--inputs", "{wrong}/text.npz"], "text.npz"),
        (["{code}", "--inputs", "{wrong}/name.npz"], "Found: z"),
        (["{code}", "--inputs", "{wrong}/shape.npz"], "(2, 5)"),
        (["{code}", "--inputs", "{wrong}/empty.npz"], "expected an example at least of x"),
        (
            ["{code}", "--inputs", "{wrong}/in.npz", "--labels", "{wrong}/labels.npz"],
            "labels and accuracy_drop together",
        ),
        (["{code}", "--accuracy-drop", "1%"], "labels and accuracy_drop together"),
        (["{code}", "--labels", "{wrong}/labels.npz", "--accuracy-drop", "1%"], "the inputs that the labels belong to"),
        (["{code}", "--accuracy-drop", "200%"], "--accuracy-drop"),
        (["{code}", *LABELLED, "{wrong}/long.npz"], "expected whole numbers (2,)"),
        (["{code}", *LABELLED, "{wrong}/range.npz"], "expected labels from 0 to 3"),
        (["{code}", *LABELLED, "{wrong}/name.npz"], "Received: z"),
        (["{code}", "--signature", "other"], "other"),
        (["{code}", "--seed", "-1"], "--seed"),
    ],
    ids=lambda value: " ".join(value).replace("{code}", "").strip() if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, words, code, wrong, tmp_path, kept, planted, capfd):
    filled = [argument.format(code=code, wrong=wrong) for argument in arguments]
    before = sorted(tmp_path.rglob("*")), sorted(kept.rglob("*"))
    capfd.readouterr()  # of other tests' TensorFlow
    with pytest.raises(SystemExit) as stopped:
        main(["tune", *filled, *(["--json", "r.json"] if "--json" not in arguments else [])])
    told = capfd.readouterr()
    assert stopped.value.code == 2
    assert told.out == ""
    assert len(told.err.strip().splitlines()) == 1, told.err
    assert words in told.err
    assert "errors.pydantic.dev" not in told.err
    after = [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts], sorted(kept.rglob("*"))
    assert after == before
    assert planted.left() == []
