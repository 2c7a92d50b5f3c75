"""Is anything lost when processes die, disks fill, files are altered and strangers knock?

    python benchmarks/faults.py                       # every fault, about an hour
    python benchmarks/faults.py --quick               # a tenth of the tries
    python benchmarks/faults.py --only launch --only disk

Each fault is injected from outside, into commands as a user runs them, many times; the moments are drawn at random.
A try is lost where anything is lost that README promises to keep, where something goes on running, or where what is
told is no single line. Some need root: they are left out by name where that is missing.

Exit code 0: nothing was lost. 1: something was; the table says what.
"""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer
from rich.console import Console
from rich.table import Table

from tfperf.processes import PIPE, STDOUT, ChildProcess, LastBytes, run

ROOT = Path(__file__).resolve().parents[1]
TFPERF = [sys.executable, "-m", "tfperf"]
MARK = "TFPERF_FAULTS"
PROMISED = 15.0  # seconds from a death or a signal until all of a launch is gone
TOLD = 10.0  # seconds until a missing network is told of
DEADLINE = 600.0
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
QUICK_SHARE = 0.1

console = Console(highlight=False)


class LostError(Exception):
    """What was lost in a try, in words."""


class NoPortError(LostError):
    """Nobody listens."""


class Row(NamedTuple):
    """A fault, and what became of the tries."""

    fault: str
    tries: int
    lost: list[str]


class Fault(NamedTuple):
    """A way to do harm: called with a random generator and a folder for each try, it raises `LostError`."""

    group: str
    words: str
    tries: int
    harm: Callable[[random.Random, Path], None]
    wants: str = ""


FAULTS: list[Fault] = []


def fault(group: str, words: str, tries: int, wants: str = "") -> Callable[[Any], Any]:
    """Enter a function into the list of faults."""

    def enter(harm: Callable[[random.Random, Path], None]) -> Callable[[random.Random, Path], None]:
        FAULTS.append(Fault(group, words, tries, harm, wants))
        return harm

    return enter


# ---------------------------------------------------------------- launches

RANK = """
import os, signal, sys, time
if sys.argv[1] == "deaf":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
print("up", os.environ["HOROVOD_RANK"], os.getpid(), flush=True)
time.sleep(600)
"""


def marked(mark: str) -> list[psutil.Process]:
    """Find the processes that inherited a mark and run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Launch:
    """A `tfperf launch` of two ranks that do nothing, of which everything is known by an environment variable."""

    def __init__(self, folder: Path, how: str = "", *options: str, program: str = RANK) -> None:
        """Start it."""
        self.mark = uuid.uuid4().hex
        script = folder / "rank.py"
        script.write_text(program, encoding="utf-8")
        command = [*TFPERF, "launch", "-np", "2", *options, "--", sys.executable, str(script), how]
        self.output = (folder / "output").open("w+b")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=STDOUT, env=os.environ | {MARK: self.mark}
        )

    def text(self) -> str:
        """Return what it has said so far."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def ranks(self) -> dict[int, int]:
        """Wait until both ranks are up; rank -> process."""
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            found = {}
            for line in self.text().splitlines():
                words = line.split()
                if "up" in words:
                    at = words.index("up")
                    found[int(words[at + 1])] = int(words[at + 2])
            if len(found) == 2:
                return found
            time.sleep(0.02)
        raise LostError(f"it did not start: {self.text()[-200:]}")

    def gone(self, seconds: float = PROMISED) -> None:
        """See to it that nothing is left of it after so many seconds."""
        until = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < until:
            self.process.poll()
            time.sleep(0.05)
        if left:
            raise LostError(f"{len(left)} processes are left after {seconds:g} s: {left[0].name()}")

    def left(self) -> list[psutil.Process]:
        """Find all processes of it."""
        return marked(self.mark)

    def __enter__(self) -> "Launch":
        """End everything with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        for _ in range(3):
            for process in self.left():
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()
        self.output.close()


@fault("launch", "a rank is killed", 20)
def rank_killed(chance: random.Random, folder: Path) -> None:
    """All gone in 15 s, the rank named."""
    with Launch(folder) as launch:
        ranks, victim = launch.ranks(), chance.randrange(2)
        os.kill(ranks[victim], signal.SIGKILL)
        launch.gone()
        if f"rank {victim} was killed by SIGKILL" not in launch.text():
            raise LostError(f"rank {victim} is not named: {launch.text()[-200:]}")


@fault("launch", "a rank stands still, and the launch is told to end", 20)
def rank_stopped(chance: random.Random, folder: Path) -> None:
    """All gone in 15 s."""
    with Launch(folder) as launch:
        os.kill(launch.ranks()[chance.randrange(2)], signal.SIGSTOP)
        launch.process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
        launch.gone()


@fault("launch", "a rank is deaf to signals, and the other is killed", 20)
def rank_deaf(chance: random.Random, folder: Path) -> None:
    """All gone in 15 s, the killed one named."""
    with Launch(folder, "deaf") as launch:
        victim = chance.randrange(2)
        os.kill(launch.ranks()[victim], signal.SIGKILL)
        launch.gone()
        if f"rank {victim} was killed by SIGKILL" not in launch.text():
            raise LostError(f"rank {victim} is not named: {launch.text()[-200:]}")


@fault("launch", "tfperf launch itself is killed at any moment", 20)
def launch_killed(chance: random.Random, folder: Path) -> None:
    """All gone in 15 s."""
    with Launch(folder, chance.choice(["", "deaf"])) as launch:
        time.sleep(chance.uniform(0, 3))
        launch.process.kill()
        launch.process.wait()
        launch.gone()


@fault("launch", "four interleavings of a signal, forced", 50)
def interleavings(*_: object) -> None:
    """The tests that force them, each a few times."""
    names = "an_error_with_one_rank or another_thread_takes or lock_is_held or before_the_rendezvous"
    test("tests/parallel/launch/test_ending.py", "-k", names)


@fault("training", "batches are unequal, gradients are not finite, a rank diverges by a bit", 1)
def training(*_: object) -> None:
    """The tests on two ranks."""
    test("tests/parallel/horovod/test_two_ranks.py", "tests/parallel/horovod/test_guard.py")


@fault("training", "workers of elastic training die and join: the ledger of batches", 1)
def ledger(*_: object) -> None:
    """The tests of elastic training."""
    test("tests/parallel/horovod/test_elastic_run.py", "tests/parallel/test_rehearsal.py")


def test(*arguments: str) -> None:
    """Run tests of tfperf."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = run([*command, *arguments], deadline=2 * DEADLINE, folder=ROOT)
    if done.code:
        raise LostError(done.output.strip().splitlines()[-1])


# ---------------------------------------------------------------- strangers

KNOCK = """
import os, socket, sys
"localhost".encode("idna")  # what another user may not read is loaded
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for port in map(int, sys.argv[1:]):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.settimeout(5)
            line.sendall(b"GET /global/0 HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
            try:
                answer = line.recv(1000)
            except ConnectionError:
                answer = b""
            except TimeoutError:
                answer = b""
            print(port, answer[:60])
    except OSError:
        print(port, b"")
"""

HOROVOD_RANK = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import horovod.tensorflow as hvd
hvd.init()
print("up", hvd.rank(), os.getpid(), flush=True)
time.sleep(600)
"""


ELASTIC_RANK = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()

@hvd.elastic.run
def train(state):
    print("up", hvd.rank(), os.getpid(), flush=True)
    time.sleep(600)

train(hvd.elastic.TensorFlowState(variables=[tf.Variable(1.0)], step=0))
"""


def ports_of(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """Find the TCP ports at which these listen: port -> address."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = connection.laddr.ip
    return found


@fault("strangers", "another user connects to every port of a launch", 3, wants="root")
def knocked(_: random.Random, folder: Path) -> None:
    """None answers, none is beyond loopback."""
    with Launch(folder, program=HOROVOD_RANK) as launch:
        launch.ranks()
        knock(launch.left())


@fault("strangers", "another user connects to every port of an elastic launch", 3, wants="root")
def knocked_elastic(_: random.Random, folder: Path) -> None:
    """None answers, none is beyond loopback, for a script that knows Horovod alone."""
    hosts = folder / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n", encoding="utf-8")
    hosts.chmod(0o755)
    options = ("--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts))
    with Launch(folder, "", *options, program=ELASTIC_RANK) as launch:
        launch.ranks()
        knock(launch.left())


@fault("strangers", "another user connects to every port of the recipe on Spark", 1, wants="java")
def knocked_spark(_: random.Random, folder: Path) -> None:
    """What listens does so in a network of its own, which no other user can enter; elsewhere none answers."""
    mark, apart = uuid.uuid4().hex, set[int]()
    command, environment = [*TFPERF, "run", "mnist_spark", "--quick"], os.environ | {MARK: mark}
    with ChildProcess(command, environment=environment, folder=folder, grace=10.0) as child:
        while child.poll() is None:
            processes = marked(mark)
            apart |= {one.pid for one in processes if in_other_network(one)}
            with contextlib.suppress(NoPortError):
                knock([one for one in processes if one.pid not in apart])
            time.sleep(2)
        if child.wait():
            raise LostError("the recipe failed")
    if not apart:
        raise LostError("no process had a network of its own")


def in_other_network(process: psutil.Process) -> bool:
    """Whether a process has a network of its own."""
    try:
        return Path(f"/proc/{process.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return True  # it has ended


def knock(processes: Sequence[psutil.Process]) -> int:
    """Have another user connect to every port at which processes listen; their number."""
    ports = ports_of(processes)
    if not ports:
        raise NoPortError("no port was found to knock at")
    if beyond := [ip for ip in ports.values() if ip not in LOOPBACK]:
        raise LostError(f"it listens at {beyond[0]}")
    done = run([sys.executable, "-c", KNOCK, *map(str, ports)], deadline=60)
    if answered := [line for line in done.output.splitlines() if not line.endswith(("b''", 'b""'))]:
        raise LostError(f"a port answers another user: {answered[0]}")
    if done.code:
        raise LostError(f"nobody could knock: {done.errors[-200:]}")
    return len(ports)


@fault("strangers", "a secret in the environment, and ssh", 3)
def secret(_: random.Random, folder: Path) -> None:
    """Stand in no command line, and do not go to the other host."""
    planted, seen = uuid.uuid4().hex, folder / "seen"
    stand_in = folder / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> {seen}\nhead -c 100000 >> {seen}\nexit 255\n', encoding="utf-8"
    )
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", "MY_API_TOKEN": planted}
    command = [*TFPERF, "launch", "-np", "2", "-H", "198.51.100.7:2", "--network-interfaces", "lo", "--", "true"]
    done = run(command, deadline=60, environment=environment)
    if not seen.exists():
        raise LostError(f"ssh was not called: {done.errors[-200:]}")
    if planted in seen.read_text(encoding="utf-8", errors="replace"):
        raise LostError("the secret went to ssh")


# ---------------------------------------------------------------- searches and exports


@fault("tune", "a search is killed at 30 random moments, and goes on", 1)
def tune_killed(chance: random.Random, folder: Path) -> None:
    """`benchmarks/killed.py` says what ran twice and what was left."""
    command = [sys.executable, "benchmarks/killed.py", "--times", "30", "--seed", str(chance.randrange(1000))]
    figures = folder / "figures.json"
    done = run([*command, "--json", str(figures)], deadline=3600, folder=ROOT)
    if not figures.exists():
        raise LostError(f"{(done.errors or done.output).strip().splitlines()[-1]}")
    told = json.loads(figures.read_text(encoding="utf-8"))
    if told["ran_twice"] or told["left"]:
        raise LostError(f"ran twice: {told['ran_twice']}; left: {told['left']}")


EXPORTS = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from tfperf import export, get_net
net = get_net("mlp")
print("ready", flush=True)
for version in range(1, 1000):
    export(net, sys.argv[1], version=version)
    print(version, flush=True)
"""


@fault("export", "an export is killed at any moment", 100)
def export_killed(chance: random.Random, folder: Path) -> None:
    """Every version that stands there is whole, those that were told of stand there, and nothing half is left."""
    home = folder / "exports"
    with ChildProcess([sys.executable, "-c", EXPORTS, home], stdout=PIPE) as child:
        assert child.stdout is not None
        if child.stdout.readline() != b"ready\n":
            raise LostError("no export began")
        said = LastBytes(child.stdout)
        time.sleep(chance.uniform(0, 1.5))
        child.kill()
        child.wait()
    told = {int(line) for line in said.text().split()}
    (net,) = [one for one in home.iterdir() if not one.name.startswith(".")] if home.exists() else [home]
    versions = {int(one.name): one for one in net.iterdir() if one.name.isdigit()} if net.exists() else {}
    if told - set(versions):
        raise LostError(f"version {min(told - set(versions))} was told of and is not there")
    if versions:
        newest = versions[max(versions)]
        missing = [
            part for part in ("saved_model.pb", "assets.extra/tfperf_manifest.json") if not (newest / part).exists()
        ]
        if missing:
            raise LostError(f"version {newest.name} has no {missing[0]}")


@fault("export", "a byte of each file of an export is altered", 1)
def export_altered(chance: random.Random, folder: Path) -> None:
    """`tfperf verify` refuses each in one line."""
    (home, *_) = exported(folder)
    for file in sorted(one for one in home.rglob("*") if one.is_file()):
        with altered(file, chance):
            done = run([*TFPERF, "verify", str(home)], deadline=120)
        lines = done.errors.strip().splitlines()
        if done.code == 0 or len(lines) != 1:
            raise LostError(f"{file.name}: exit code {done.code}, {len(lines)} lines")


@fault("deployment", "a byte of each file of a deployment is altered", 1)
def deployment_altered(chance: random.Random, folder: Path) -> None:
    """`load_deployed` refuses each in one line, before it loads anything."""
    files = mutations().good_files(folder)
    home = files["plan"].parent
    program = "import sys, tfperf\nfrom tfperf.errors import TfperfError\ntry:\n    tfperf.load_deployed(sys.argv[1])\n"
    program += "except TfperfError as error:\n    print(error)\n    sys.exit(2)\n"
    for file in sorted(one for one in home.rglob("*") if one.is_file()):
        with altered(file, chance):
            done = run([sys.executable, "-c", program, home], deadline=120)
        if done.code != 2 or len(done.output.splitlines()) != 1:
            raise LostError(f"{file.name}: exit code {done.code}: {done.errors[-200:]}")


def exported(folder: Path) -> list[Path]:
    """Export a net; the folders of its versions."""
    done = run([*TFPERF, "export", "mlp", str(folder / "exports")], deadline=120)
    if done.code:
        raise LostError(f"no export: {done.errors[-200:]}")
    return sorted((folder / "exports").glob("*/*"))


@contextlib.contextmanager
def altered(file: Path, chance: random.Random) -> Iterator[None]:
    """Alter a byte meanwhile."""
    content = file.read_bytes()
    if not content:
        content_now = b"\0"
    else:
        at = chance.randrange(len(content))
        content_now = content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
    file.write_bytes(content_now)
    try:
        yield
    finally:
        file.write_bytes(content)


# ---------------------------------------------------------------- disks


WRITES = """
import json, os, sys
from pathlib import Path
from tfperf.files import writing_folder_whole, writing_whole
folder, size = Path(sys.argv[1]), int(sys.argv[2])
try:
    with writing_whole(folder / "file") as file:
        for _ in range(size):
            file.write(b"new" * 341 + b"\\n")
    with writing_folder_whole(folder / "folder") as aside:
        for number in range(size):
            (aside / str(number)).write_bytes(b"new" * 341 + b"\\n")
except OSError as error:
    print(error.strerror)
"""


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a disk of so many bytes."""
    place = folder / "disk"
    place.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], deadline=10).code:
        raise LostError("no disk could be mounted")
    try:
        yield place
    finally:
        run(["umount", "-l", place], deadline=10)


@fault("disk", "the disk is full at any write of a file or a folder", 40, wants="root")
def disk_full(chance: random.Random, folder: Path) -> None:
    """The old file and folder are whole, or the new ones, and nothing half is left."""
    pages = chance.randint(8, 80)
    with small_disk(folder, pages * 4096) as place:
        (place / "file").write_bytes(b"old")
        (place / "folder").mkdir()
        (place / "folder" / "0").write_bytes(b"old")
        done = run([sys.executable, "-c", WRITES, place, "40"], deadline=60)
        if done.code:
            raise LostError(done.errors.strip().splitlines()[-1])
        content = (place / "file").read_bytes()
        if content != b"old" and content != (b"new" * 341 + b"\n") * 40:
            raise LostError(f"a file of {len(content)} bytes is half")
        names = len(list((place / "folder").iterdir()))
        if names not in (1, 40):
            raise LostError(f"a folder has {names} files")
        if left := [one.name for one in place.iterdir() if one.name not in ("file", "folder")]:
            raise LostError(f"{left[0]} is left")


@fault("disk", "the disk is full while a net is exported", 12, wants="root")
def export_on_full_disk(chance: random.Random, folder: Path) -> None:
    """One line and exit code 2, or an export that verifies; nothing half."""
    with small_disk(folder, chance.randint(1, 900) * 4096) as place:
        done = run([*TFPERF, "export", "mlp", place], deadline=120)
        lines = done.errors.strip().splitlines()
        if done.code not in (0, 2) or (done.code == 2 and len(lines) != 1):
            raise LostError(f"exit code {done.code}: {done.errors[-200:]}")
        whole = [one for one in place.glob("*/*") if one.name.isdigit()]
        if bool(whole) != (done.code == 0):
            raise LostError(f"exit code {done.code}, and {len(whole)} versions")
        if left := [one.name for one in place.rglob("*.part")]:
            raise LostError(f"{left[0]} is left")


# ---------------------------------------------------------------- files


def mutations() -> Any:
    """Load tests/mutations.py."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "tests" / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = module
    spec.loader.exec_module(module)
    return module


MUTANTS = 500


@fault("files", f"{MUTANTS} result, plan, manifest, npz and .keras files are damaged", 1)
def files_damaged(chance: random.Random, folder: Path) -> None:
    """Each is read, or refused in one line, within 5 s and 1 GiB."""
    ways = mutations()
    files = ways.good_files(folder / "good")
    for kind, good in files.items():
        content = good.read_bytes()
        damaged = [ways.mutated(content, kind, chance) for _ in range(MUTANTS // len(files))]
        readings = ways.read_all(kind, good, damaged, folder / f"bad_{kind}")
        if bad := [one for one in readings if one.ended not in ("read", "refused")]:
            raise LostError(f"{len(bad)} of {kind}: {bad[0].ended}: {bad[0].words.strip().splitlines()[-1:]}")


HOSTILE = "\x1b]0;owned\x07\x1b[31m\u202e<img src=x onerror=document.title='owned'>[red]"


@fault("files", "a file has a hostile name; its report is opened in a browser", 1, wants="chromium")
def hostile_name(_: random.Random, folder: Path) -> None:
    """No control character reaches the terminal, no script runs in the page."""
    net, page, result = folder / f"{HOSTILE}.keras", folder / "page.html", folder / "result.json"
    run([sys.executable, "-c", "import sys, tfperf; tfperf.get_net('mlp').save(sys.argv[1])", net], deadline=60)
    commands = [
        [*TFPERF, "tune", net.name, "--engine", "frozen", "--time-limit", "5", "--json", str(result)],
        [*TFPERF, "report", str(result), "--output", str(page)],
        [*TFPERF, "explain", net.name],
        [*TFPERF, "export", net.name, str(folder / "exports")],
        [*TFPERF, "scale", f"no{net.name}"],
        [*TFPERF, "verify", net.name],
    ]
    for command in commands:
        done = run(command, deadline=300, folder=folder)
        written = done.output + done.errors
        if bad := [one for one in ("\x1b]", "\x07", "\u202e", "\x1b[31m\u202e") if one in written]:
            raise LostError(f"{command[3]}: {bad[0]!r} reaches the terminal")
    if page.exists():
        browser = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
        done = run([browser, "--headless", "--no-sandbox", "--dump-dom", f"file://{page}"], deadline=120)
        if "<title>owned" in done.output or "<img src=" in done.output:
            raise LostError("the page runs the name as a script")
    else:
        raise LostError("there is no page")


# ---------------------------------------------------------------- networks


@fault("network", "there is no network, and data are wanted", 2, wants="root")
def no_network(_: random.Random, folder: Path) -> None:
    """Told in one line, within 10 s."""
    began = time.monotonic()
    environment = os.environ | {"TFPERF_CACHE": str(folder / "cache"), "TFPERF_DATA": str(folder / "nothing")}
    done = run(["unshare", "-n", *TFPERF, "data", "mnist"], deadline=60, environment=environment)
    seconds = time.monotonic() - began
    if done.code == 0:
        return  # they were there
    if seconds > TOLD or len(done.errors.strip().splitlines()) != 1:
        raise LostError(f"{seconds:.0f} s, {len(done.errors.strip().splitlines())} lines")


# ---------------------------------------------------------------- the whole


def why_not(one: Fault) -> str:
    """Say why a fault cannot be tried here, or nothing."""
    if one.wants == "root" and os.geteuid() != 0:
        return "needs root"
    if one.wants == "java" and not shutil.which("java"):
        return "needs Java"
    if one.wants == "chromium" and not (shutil.which("chromium") or shutil.which("chromium-browser")):
        return "needs chromium"
    return ""


def tried(one: Fault, share: float, seed: int) -> Row:
    """Try a fault again and again."""
    chance, lost = random.Random(f"{seed} {one.words}"), []
    tries = max(1, round(share * one.tries))
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="tfperf-faults-") as folder:
            try:
                one.harm(chance, Path(folder))
            except LostError as words:
                lost.append(str(words))
            except Exception as error:  # a fault that could not be injected is one that was not survived
                lost.append(f"{type(error).__name__}: {error}")
    return Row(one.words, tries, lost)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the tries.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Groups of faults; several times.")] = None,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Inject every fault, and count what was lost."""
    groups = list(dict.fromkeys(one.group for one in FAULTS))
    if unknown := [name for name in only or () if name not in groups]:
        raise typer.BadParameter(f"expected --only as {', '.join(groups)}. Received: {unknown[0]}")
    rows = []
    for one in FAULTS:
        if only and one.group not in only:
            continue
        if reason := why_not(one):
            console.print(f"{one.words}: left out, {reason}", markup=False)
            continue
        began = time.monotonic()
        rows.append(tried(one, QUICK_SHARE if quick else 1.0, seed))
        seconds = time.monotonic() - began
        console.print(f"{one.words}: {len(rows[-1].lost)} of {rows[-1].tries} lost, {seconds:.0f} s", markup=False)
        for words in dict.fromkeys(rows[-1].lost):
            console.print(f"    {words}", markup=False)
    table = Table("fault", "tries", "survived", "lost", box=None)
    for row in rows:
        table.add_row(row.fault, str(row.tries), str(row.tries - len(row.lost)), str(len(row.lost)))
    console.print(table)
    if json_path:
        json_path.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(1 if any(row.lost for row in rows) else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and so would all that is started here
    typer.run(main)
