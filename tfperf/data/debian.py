"""A Debian package unpacked into a folder of one's own: no root, and no internet beyond a package mirror."""

import contextlib
import errno
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfperf.errors import DataError
from tfperf.processes import STDOUT, ChildProcess, run

__all__ = ["ANSWER_S", "unpack_package"]

ANSWER_S = 5.0  # how long the mirror may take to send a first byte; with a download after it, still below 10 s
_STALL_S = 30.0  # how long apt may go on without another byte
_UNPACK_S = 120.0
_LOOK_EVERY_S = 0.1

# The hooks that a system runs after its own updates are not for a private one, and may need root.
# Sandbox: root as apt's "_apt" could not write to our folder. Caches: kept in memory, so that what appears
# below the watched folder is what came from a mirror.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::Languages;
Acquire::Languages "none";
Acquire::Retries "0";
APT::Sandbox::User "root";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""


def unpack_package(package: str, target: Path, check: Callable[[Path], object], *, answer_s: float = ANSWER_S) -> None:
    """Download a Debian package with apt-get and unpack it as the folder `target`, whole or not at all.

    First with the machine's own package lists; where they are missing or out of date, with lists fetched
    into a temporary folder. apt checks signatures and sums as always; nothing of the system changes.
    Several processes may do this at once: one of them wins, whole. A target that exists is left alone.

    Args:
        package: its name.
        target: the folder to make; beside it there must be room for the unpacked package.
        check: called with the unpacked tree before it gets its name; what it raises ends the attempt.
        answer_s: seconds until the first byte from a mirror must have come.

    Raises:
        DataError: this is no Debian, no mirror answers, apt or dpkg fails, or the target cannot be made.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DataError(f"Debian's package {package} cannot be unpacked here: {tool} is not on the PATH")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="tfperf-apt-") as work,
            tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as aside,
        ):
            archive = _download(package, Path(work), answer_s)
            tree = Path(aside, "tree")
            _unpack(archive, tree)
            check(tree)
            _give_name(tree, target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be made: {error.strerror or error}; "
            "set TFPERF_CACHE to a folder that you may write, with room for it"
        ) from error


def _download(package: str, work: Path, answer_s: float) -> Path:
    """Download the package's .deb file into the empty folder `work`; return it."""
    configuration = work / "apt.conf"
    configuration.write_text(_CONFIGURATION, encoding="utf-8")
    data = work / "data"
    for folder in ("deb", "state/lists/partial", "cache/archives/partial"):
        (data / folder).mkdir(parents=True)
    apt = ["apt-get", "-q", "-c", str(configuration), "-o", f"Dir::Cache={data / 'cache'}"]
    for scheme in ("http", "https"):
        apt += ["-o", f"Acquire::{scheme}::Timeout={math.ceil(answer_s)}"]
    private = ["-o", f"Dir::State={data / 'state'}", "-o", f"Dir::State::Lists={data / 'state/lists'}"]
    answer_by = time.monotonic() + answer_s

    def run(*arguments: str) -> tuple[bool, str]:
        return _run([*apt, *arguments], data, work / "log", answer_by)

    done, _ = run("download", package)
    if not done:  # the machine's lists are missing or out of date, or it has no network
        _, update_words = run(*private, "update")  # may fail for one source of many, and not for ours
        done, words = run(*private, "download", package)
        if not done:
            after = f" (apt-get update ended with: {update_words})" if update_words != words else ""
            raise DataError(f"Debian's package {package} cannot be downloaded: {words}{after}")
    archives = list((data / "deb").glob(f"{package}_*.deb"))
    if len(archives) != 1:
        raise DataError(f"expected one .deb file of {package} from apt-get download, found {len(archives)}")
    return archives[0]


def _run(command: Sequence[str], data: Path, log: Path, answer_by: float) -> tuple[bool, str]:
    """Run apt-get in `data/deb`. Return whether it succeeded, and what it had to say, in one line.

    apt has no limit on the whole of a name look-up or of a slow mirror, so what it writes below `data` is
    watched: the first byte must come by `answer_by`, on the monotonic clock, and no pause be too long.
    Otherwise it is killed, with its helpers.
    """
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    with (
        log.open("wb") as output,
        ChildProcess(command, folder=data / "deb", stdout=output, stderr=STDOUT, environment=environment) as process,
    ):
        if not _ends(process, data, answer_by):
            return False, "no Debian mirror answers, or it stopped sending"
        code = process.wait()
    lines = [line.strip() for line in log.read_text(errors="replace", encoding="utf-8").splitlines() if line.strip()]
    failed = [line for line in lines if line[3:].startswith("Failed to fetch")]  # after "E: " or "W: "
    errors = [line for line in lines if line.startswith("E: ")]
    words = (failed[:1] or errors or lines or [f"exit code {code}"])[-1]
    return code == 0, words


def _ends(
    process: ChildProcess,
    data: Path,
    answer_by: float,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait for a process as long as what lies below `data` grows. Return whether it ended by itself."""
    size, since = 0, clock()
    while True:
        with contextlib.suppress(TimeoutError):
            process.wait(_LOOK_EVERY_S)
            return True
        now, before, size = clock(), size, _bytes_below(data)
        if size != before:
            since = now
        elif now > (since + _STALL_S if size else answer_by):
            return False


def _bytes_below(folder: Path) -> int:
    """How many bytes the files below a folder have; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(root, name)).st_size
    return total


def _unpack(archive: Path, tree: Path) -> None:
    """Unpack a .deb file's tree into the folder `tree`. No script of the package is run."""
    try:
        done = run(["dpkg-deb", "-x", archive, tree], deadline=_UNPACK_S)
    except TimeoutError as error:
        raise DataError(f"dpkg-deb did not unpack {archive.name} within {_UNPACK_S:g} s") from error
    if done.code:
        words = done.errors.strip().splitlines() or [f"exit code {done.code}"]
        raise DataError(f"dpkg-deb cannot unpack {archive.name}: {words[-1]}")


def _give_name(tree: Path, target: Path) -> None:
    """Rename the finished tree to its name in one step, unless another process was first."""
    try:
        tree.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
