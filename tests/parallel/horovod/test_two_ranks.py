"""Every check of two_ranks/ passes on both ranks of `horovodrun -np 2`, or of `tfperf launch -np 2`.

A launch takes twenty seconds before the first check, so the files share two. Each check is a test here.
"""

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHECKS = HERE / "two_ranks"
DEADLINE = 900
"""Seconds for all checks of one launch; a quiet machine with two cores takes less than a quarter of it."""

pytestmark = pytest.mark.timeout(DEADLINE + 60)  # the first test of a launch has all of it


def names_in(source: str) -> list[str]:
    """The checks of a file, as pytest names them; values of `parametrize` are literal strings."""
    names = []
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
            ids = [""]
            for decorator in function.decorator_list:  # the one nearest to the function names its values first
                if ast.unparse(decorator).startswith("pytest.mark.parametrize"):
                    values = ast.literal_eval(decorator.args[1])
                    ids = [f"{value}-{rest}" if rest else value for rest in ids for value in values]
            names += [f"{function.name}[{values}]" if values else function.name for values in ids]
    return names


LISTED = {file.stem: names_in(file.read_text()) for file in sorted(CHECKS.glob("check_*.py"))}

LAUNCHES = [list(LISTED)[:4], list(LISTED)[4:]]

LAUNCHER_OF_THOSE_THAT_PART = "tfperf launch"
"""Horovod's own server may keep addresses of the last `hvd.init()`, which the next one of the launch then meets."""

Outcomes = dict[str, list[dict]]


@pytest.fixture(scope="module")
def outcomes(launch_ranks, tmp_path_factory) -> Callable[[str], tuple[str, list[Outcomes]]]:
    """A function that runs the launch of a file, once, and returns how it ended and each rank's outcomes."""
    known: dict[str, tuple[str, list[Outcomes]]] = {}

    def outcomes(stem: str) -> tuple[str, list[Outcomes]]:
        if stem not in known:
            folder = tmp_path_factory.mktemp(stem)
            stems = next(stems for stems in LAUNCHES if stem in stems)
            command = [sys.executable, "-m", "pytest", *(str(CHECKS / f"{stem}.py") for stem in stems)]
            command += ["-o", "python_files=check_*.py", "-o", f"pythonpath={CHECKS} {ROOT}"]
            command += [f"--rootdir={ROOT}", f"--confcutdir={CHECKS}"]
            command += ["-q", "-p", "no:cacheprovider", "--tb=short", "--timeout=100", "--timeout-method=thread"]
            env = {"CHECK_RESULTS": str(folder), "HOROVOD_CYCLE_TIME": "4"}  # ms; looking each ms takes much of a core
            launcher = LAUNCHER_OF_THOSE_THAT_PART if "check_elastic" in stems else "horovodrun"
            ended = told_end(*launch_ranks(command, folder=folder, deadline=DEADLINE, env=env, launcher=launcher))
            found = ended, [read(folder / f"rank{rank}.jsonl") for rank in range(2)]
            known.update(dict.fromkeys(stems, found))
        return known[stem]

    return outcomes


def told_end(returncode: int | None, output: str) -> str:
    return f"the launch ended with {returncode} (None: at its deadline)\n{output}"


def read(file: Path) -> Outcomes:
    """The outcomes that a rank wrote, by check."""
    found: Outcomes = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        entry = json.loads(line)
        found.setdefault(entry["check"], []).append(entry)
    return found


def problem(name: str, ended: str, ranks: list[Outcomes]) -> str:
    """Why a check did not pass on each rank; empty: it did."""
    told = []
    for rank, outcomes in enumerate(ranks):
        entries = outcomes.get(name, [])
        wrong = [entry for entry in entries if entry["outcome"] != "passed"]
        told += [f"rank {rank}, {entry['when']}: {entry['outcome']}\n{entry['text']}" for entry in wrong]
        if not wrong and [entry["when"] for entry in entries] != ["setup", "call", "teardown"]:
            told.append(f"rank {rank} did not end it; {ended}")
    return "\n".join(told)


@pytest.mark.parametrize(("stem", "name"), [(stem, name) for stem, names in LISTED.items() for name in names])
def test_passes_on_both_ranks(stem: str, name: str, outcomes) -> None:
    if told := problem(name, *outcomes(stem)):
        pytest.fail(told, pytrace=False)


@pytest.mark.parametrize("stems", LAUNCHES)
def test_no_check_is_missed(stems: list[str], outcomes) -> None:
    ended, ranks = outcomes(stems[0])
    listed = [name for stem in stems for name in LISTED[stem]]
    assert all(LISTED[stem] for stem in stems)
    assert [sorted(rank) for rank in ranks] == [sorted(listed)] * 2, ended  # so no name is there twice


HOROVODS_TESTS = {
    "test_broadcast_global_variables_callback_with_local_vars",
    "test_elastic_state",
    "test_from_config",
    "test_grad_aggregation_with_inf_grad",
    "test_gradient_aggregation_0",
    "test_gradient_aggregation_1",
    "test_gradient_aggregation_with_local_vars_0",
    "test_gradient_aggregation_with_local_vars_1",
    "test_legacy_optimizer",
    "test_partial_distributed_optimizer",
    "test_session",
    "test_sparse_as_dense",
    "test_sparse_as_dense_with_grad_aggregation",
    "test_train_model_lr_schedule",
}
"""What pytest collects from test/parallel/test_tensorflow2_keras.py of Horovod v0.28.1."""


def test_the_table_in_the_docs_names_each_test_of_horovod() -> None:
    """Each once, and with checks that exist; but for test_session, which tests nothing."""
    text = (ROOT / "docs" / "horovod_keras3.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `test_")
    ]
    theirs = [name for row in rows for name in re.findall(r"`(test_\w+)`", row[0])]
    assert sorted(theirs) == sorted(HOROVODS_TESTS)
    for row in rows:
        ours = re.findall(r"`([^`]+)`", row[2])
        assert set(ours) <= set(LISTED["check_horovods_own"]), row
        assert bool(ours) == (row[0] != "`test_session`"), row


BROKEN = """
import os
import pytest

RANK = int(os.environ["HOROVOD_RANK"])


def test_good(): pass


def test_bad_on_rank_1():
    assert RANK == 0, "rank 1 is bad"


@pytest.mark.parametrize("value", ["a", "b"])
def test_of_values(value):
    assert value == "a"


def test_skipped_on_rank_0():
    if RANK == 0:
        pytest.skip("not here")


def test_leaves_the_other_waiting():
    import tensorflow as tf
    import tfperf.parallel.horovod as hvd

    if RANK == 1:
        raise ValueError("gone")
    hvd.allreduce(tf.ones(1), name="waits")


def test_after_it():
    import tensorflow as tf
    import tfperf.parallel.horovod as hvd

    assert hvd.allreduce(tf.constant(RANK), op=hvd.Sum) == 1


def test_dies():
    if RANK == 1:
        os._exit(3)
"""


def test_the_frame_tells_good_from_bad(launch_ranks, tmp_path) -> None:
    """A check that fails, is skipped, parts the ranks or kills one is told, and those after it run."""
    (tmp_path / "check_broken.py").write_text(BROKEN)
    (tmp_path / "conftest.py").write_text((CHECKS / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "check_broken.py", "-o", "python_files=check_*.py"]
    command += ["-o", f"pythonpath={ROOT}", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-q"]
    env = {"CHECK_RESULTS": str(tmp_path), "CHECK_PATIENCE": "3"}
    launched = launch_ranks(command, folder=tmp_path, deadline=150, env=env, launcher=LAUNCHER_OF_THOSE_THAT_PART)
    ended = told_end(*launched)
    ranks = [read(tmp_path / f"rank{rank}.jsonl") for rank in range(2)]
    names = names_in(BROKEN)
    told = {name: problem(name, ended, ranks) for name in names}

    assert names == [
        "test_good", "test_bad_on_rank_1", "test_of_values[a]", "test_of_values[b]", "test_skipped_on_rank_0",
        "test_leaves_the_other_waiting", "test_after_it", "test_dies",
    ]  # fmt: skip
    assert told["test_good"] == told["test_of_values[a]"] == ""
    assert "rank 1 is bad" in told["test_bad_on_rank_1"]
    assert "rank 0" not in told["test_bad_on_rank_1"]
    assert all(f"rank {rank}, call: failed" in told["test_of_values[b]"] for rank in range(2))
    assert "rank 0, call: skipped" in told["test_skipped_on_rank_0"]
    assert "gone" in told["test_leaves_the_other_waiting"]
    assert all(f"rank {rank}, teardown: failed\nthe ranks parted" in told[names[5]] for rank in range(2))
    assert told["test_after_it"] == ""
    assert "rank 1 did not end it" in told["test_dies"]
    assert "ended with 3 " in told["test_dies"]
