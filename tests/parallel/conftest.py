"""Programs that run on several ranks at once, each with a deadline; no process of theirs outlives its test."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.marked import MARK, end_marked

HERE = Path(__file__).parent

FIRST_LINES = """\
import json, os, pathlib

def report(**values):
    pathlib.Path(os.environ["RANK_RESULTS"], os.environ["HOROVOD_RANK"]).write_text(json.dumps(values))
"""

LAUNCHERS: dict[str, list[str]] = {
    "horovodrun": [sys.executable, str(HERE / "horovod" / "loopback_horovodrun.py")],
    "tfperf launch": [sys.executable, "-m", "tfperf", "launch"],
}


@dataclasses.dataclass(frozen=True)
class Launched:
    """What came of a launch: the launcher's exit code (None: ended at the deadline), all output, one result a rank."""

    returncode: int | None
    output: str
    results: tuple[dict[str, Any] | None, ...]

    def of_each_rank(self) -> tuple[dict[str, Any], ...]:
        """The results, of a launch that ended well and in which every rank reported."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.output}"
        assert None not in self.results, f"a rank reported nothing: {self.results}\n{self.output}"
        return self.results


def environment_of_ranks(changes: Mapping[str, str]) -> dict[str, str]:
    """This environment without its Horovod settings, for small nets on a few CPU cores that are shared."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "PYTEST_"))}
    return (
        kept
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "-1",  # 1e-6 is asked of float32, and a GPU may compute in TensorFloat-32
            "OMP_NUM_THREADS": "1",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_BACKEND": "tensorflow",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "300",  # tests that wait in vain have deadlines of their own
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
        }
        | dict(changes)
    )


def launch(command: Sequence[str], *, folder: Path, env: Mapping[str, str], deadline: float) -> tuple[int | None, str]:
    """Run a command to its end or to the deadline in seconds; its exit code (None: ended here) and its output."""
    mark = uuid.uuid4().hex
    written = folder / f"output-{mark}.txt"
    with written.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env) | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            returncode = process.wait(deadline)
        except subprocess.TimeoutExpired:
            returncode = None
            process.terminate()  # first the polite way, which lets horovodrun end its ranks and remove its semaphores
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        finally:
            end_marked(mark)  # horovodrun puts each rank in a session of its own
            process.wait()
    return returncode, written.read_text(errors="replace")


@pytest.fixture(scope="session")
def launch_ranks() -> Callable[..., tuple[int | None, str]]:
    """A function that runs a command on each of `np` ranks; see `launch` for what it returns."""

    def launch_ranks(
        command: Sequence[str],
        *,
        folder: Path,
        np: int = 2,
        deadline: float = 120,
        launcher: str = "horovodrun",
        options: Sequence[str] = (),
        env: Mapping[str, str] = {},
    ) -> tuple[int | None, str]:
        options = list(options)
        if launcher == "horovodrun":
            options += ["--gloo", "--network-interface", "lo", "--disable-cache"]
        whole = [*LAUNCHERS[launcher], "-np", str(np), *options, *command]
        return launch(whole, folder=folder, env=environment_of_ranks(env), deadline=deadline)

    return launch_ranks


@pytest.fixture
def ranks(launch_ranks, tmp_path: Path) -> Callable[..., Launched]:
    """A function that runs a program on each of `np` ranks: ranks(source_text) -> Launched.

    The program may call `report(**values)`, whose values (JSON) are its rank's entry in `results`.
    Keywords: np, deadline (seconds), launcher ("horovodrun" or "tfperf launch"), options (of the launcher), env.
    """

    def ranks(source_text: str, *, np: int = 2, **options: Any) -> Launched:
        folder = tmp_path / uuid.uuid4().hex
        results = folder / "results"
        results.mkdir(parents=True)
        program = folder / "program.py"
        program.write_text(FIRST_LINES + textwrap.dedent(source_text))
        env = {"RANK_RESULTS": str(results), **options.pop("env", {})}
        command = [sys.executable, "-u", str(program)]
        returncode, output = launch_ranks(command, folder=folder, np=np, env=env, **options)
        files = [results / str(rank) for rank in range(np)]
        return Launched(returncode, output, tuple(json.loads(f.read_text()) if f.exists() else None for f in files))

    return ranks
