"""The Horovod of this environment: what it was built for and with, whether it loads, and whether two ranks can sum."""

import dataclasses
import importlib
import json
import os
import sys
import sysconfig
import tempfile
import urllib.parse
from importlib import metadata
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build import loading
from tfperf.parallel.horovod_build.requirements import InstalledTensorFlow, find_tensorflow
from tfperf.processes import run

__all__ = ["Allreduce", "InstalledHorovod", "allreduce_on_two_ranks", "find_horovod"]

LOADING_S = 60.0
"""Seconds that loading the extension may take; half a second is usual."""

RANKS = 2

DEADLINE_S = 120.0
"""Seconds that the two ranks may take, start of TensorFlow included; ten are usual."""


@dataclasses.dataclass(frozen=True)
class InstalledHorovod:
    """A Horovod that pip knows of.

    Attributes:
        version: such as "0.28.1".
        tensorflow: the TensorFlow it was built for, or None if it was built without.
        key: what `tfperf horovod install` built it from, as its cache calls it; None if another built it.
        built_with: those of loading.OPERATIONS that it has; empty where it does not load.
        nccl: the version of NCCL it was compiled with, or None.
        mpi: how the MPI calls itself that it loads, such as "MPICH Version: 5.0.2", or None.
        problem: why `import horovod.tensorflow` fails here or cannot be relied on, in one line; None if it works.
    """

    version: str
    tensorflow: str | None
    key: str | None
    built_with: tuple[str, ...]
    nccl: str | None
    problem: str | None
    mpi: str | None = None

    def __str__(self) -> str:
        """For example "Horovod 0.28.1 for TensorFlow 2.21.0 with gloo"."""
        for_what = f" for TensorFlow {self.tensorflow}" if self.tensorflow else ""
        with_what = f" with {', '.join(self.built_with)}" if self.built_with else ""
        return f"Horovod {self.version}{for_what}{with_what}"


def find_horovod() -> InstalledHorovod | None:
    """The Horovod of this environment, or None. About a second; TensorFlow is not imported.

    Horovod's extension is loaded beside TensorFlow's libraries in a process of its own, so one that was built
    for another TensorFlow or Python is found out.
    """
    importlib.invalidate_caches()
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return None
    package = Path(str(distribution.locate_file("horovod")))
    built_for = _built_for(package)
    answers, problem = _try(package, built_for, find_tensorflow())
    mpi = answers.pop(loading.MPI_VERSION, None)
    code = int(answers.get("nccl", 0))
    return InstalledHorovod(
        version=distribution.version,
        tensorflow=built_for,
        key=_key(distribution),
        built_with=tuple(name for name, answer in answers.items() if answer),
        nccl=_nccl_version(code) if code else None,
        problem=problem,
        mpi=str(mpi) if mpi else None,
    )


def _built_for(package: Path) -> str | None:
    """The TensorFlow version that Horovod's own build wrote down."""
    try:
        frameworks = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    version = frameworks.get("tensorflow")
    return version if isinstance(version, str) else None


def _key(distribution: metadata.Distribution) -> str | None:
    """pip writes down which file it installed; a wheel of ours lies in a folder named by its key."""
    try:
        url = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
    except ValueError:
        return None
    path = Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))
    return path.parent.name if path.parent.name.startswith(f"horovod-{distribution.version}_") else None


def _try(
    package: Path, built_for: str | None, tensorflow: InstalledTensorFlow | None
) -> tuple[dict[str, int | str], str | None]:
    """(what the extension says it was built with, why it does not work or None)."""
    extension = package / "tensorflow" / f"mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not extension.exists():
        return {}, f"it has no {extension.name}: it was built without TensorFlow, or for another Python"
    if tensorflow is None:
        return {}, "TensorFlow is not installed"
    answers, problem = _load(extension, tensorflow)
    # TensorFlow writes 2.21.0-rc1 where its package says 2.21.0rc1
    if problem is None and (built_for or "").replace("-", "") != tensorflow.version:
        problem = f"it was built for TensorFlow {built_for or 'of unknown version'}, not {tensorflow.version}"
    return answers, problem


def _load(extension: Path, tensorflow: InstalledTensorFlow) -> tuple[dict[str, int | str], str | None]:
    libraries = [sorted(tensorflow.folder.glob(f"libtensorflow_{name}.so*")) for name in ("framework", "cc")]
    if not all(libraries):
        return {}, f"TensorFlow {tensorflow.version} lacks its libraries libtensorflow_framework and libtensorflow_cc"
    paths = [str(found[0]) for found in libraries] + [str(extension)]
    command = [sys.executable, "-I", loading.__file__, *paths]
    try:
        done = run(command, deadline=LOADING_S)
    except TimeoutError:
        return {}, f"its extension did not load within {LOADING_S:g} s"
    if done.code != 0:
        said = done.errors.strip().splitlines() or [f"exit code {done.code}"]
        return {}, f"its extension does not load beside TensorFlow {tensorflow.version}: {said[-1]}"
    answers: dict[str, int | str] = json.loads(done.output)
    return answers, None


def _nccl_version(code: int) -> str:
    """2.27.3 from 22703: NCCL's own code since its version 2.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


@dataclasses.dataclass(frozen=True)
class Allreduce:
    """What came back from the sum over two ranks, of 1 on the one and 2 on the other.

    Attributes:
        total: the value of every element.
        seconds: how long it took, one value for each rank.
    """

    total: float
    seconds: tuple[float, ...]


def allreduce_on_two_ranks(deadline_s: float = DEADLINE_S, *, mpi: bool = False) -> Allreduce:
    """Start two ranks with `tfperf launch`, which listen on loopback alone, and let them sum a tensor.

    Args:
        deadline_s: seconds that they may take.
        mpi: they do so through MPI and not through Gloo.

    Raises:
        HorovodError: they fail, take too long, or give a wrong sum.
    """
    with tempfile.TemporaryDirectory(prefix="tfperf-two-ranks-") as folder:
        result = Path(folder, "result.json")
        program = [sys.executable, "-m", "tfperf.parallel.horovod_build.two_ranks", str(result)]
        options = ["-np", str(RANKS), *(["--mpi"] if mpi else [])]
        command = [sys.executable, "-m", "tfperf", "launch", *options, "--", *program]
        _run(command, deadline_s)
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise HorovodError("the two ranks ended without an error and without a result") from error
    expected = float(sum(range(1, RANKS + 1)))
    if found["size"] != RANKS:
        raise HorovodError(f"expected {RANKS} ranks that know of each other, found a world of {found['size']}")
    if not found["least"] == found["greatest"] == expected:
        raise HorovodError(f"expected the sum {expected}, found {found['least']} to {found['greatest']}")
    return Allreduce(expected, tuple(found["seconds"]))


def _run(command: list[str], deadline_s: float) -> None:
    """Run the launcher to its end, within the deadline; nothing of it outlives this."""
    try:
        done = run(command, deadline=deadline_s, merged=True, environment={"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ)
    except TimeoutError as error:
        raise HorovodError(f"the two ranks did not end within {deadline_s:g} s") from error
    if done.code != 0:
        lines = [line.strip() for line in done.output.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line] or lines or [f"exit code {done.code}"]
        raise HorovodError(f"the two ranks failed: {errors[-1]}")
