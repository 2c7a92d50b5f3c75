"""Fixtures that tests of several rooms use."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tests.fixtures.shares import Share, share_of
from tests.fixtures.untuned import leave_out_tuner
from tfperf.measure import Conditions, Environment, Measurement, Stop
from tfperf.measure.memory import MemoryPeak

pytest_plugins = [
    "tests.fixtures.engines",
    "tests.fixtures.explanations",
    "tests.fixtures.stacks",
    "tests.fixtures.training",
]
"""What tests of several rooms use, beside the fixtures here."""

QUIET = Conditions(load_before=0.1, steal_share=0.0, busy_elsewhere_share=0.01, seconds=1.0)
MEMORY = MemoryPeak(resident=300 * 2**20, resident_before=200 * 2**20, device=None, of_whole_process=False)

# No test may depend on how busy the machine is, nor find by chance what has nothing to do with a change. New examples
# are looked for with `--hypothesis-profile random`, which is loaded after this one.
settings.register_profile("tfperf", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("tfperf")

TESTS = Path(__file__).parent

STARTS = re.compile(
    r"\b(tensorflow|tf|keras|get_net|subprocess|tfperf_command|run_python|ForkServer|\w+Process(es)?)\b"
)
"""Words by which tests start TensorFlow or processes."""


def pytest_addoption(parser):
    """`make quick` is for what a developer runs all the time."""
    parser.addoption("--quick", action="store_true", help="leave out tests that start TensorFlow or processes")
    parser.addoption(
        "--share",
        type=share_of,
        default=Share(1, 1),
        metavar="2/3",
        help="of the test files that start TensorFlow or processes run the second of three parts",
    )


def starts(file):
    """Whether one of them stands in a file."""
    return bool(STARTS.search(file.read_text(encoding="utf-8")))


def pytest_ignore_collect(collection_path, config):
    """With --quick, leave out a test file in which one of them stands; with --share, one that belongs to another."""
    if not collection_path.match("test_*.py"):
        return None
    has_turn = config.getoption("--share").has(collection_path.relative_to(TESTS).as_posix())
    left_out = config.getoption("--quick") or not has_turn
    return True if left_out and starts(collection_path) else None


def pytest_collection_modifyitems(config, items):
    """With --quick, leave out a test whose fixtures are in such a file."""
    if config.getoption("--quick"):
        slow = {item for item in items if any(map(starts, fixture_files(item)))}
        config.hook.pytest_deselected(items=[*slow])
        items[:] = [item for item in items if item not in slow]


def fixture_files(item):
    """The files of a test's fixtures, without this one and what shows stacks, whose fixtures all tests have."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    files = {Path(one.func.__code__.co_filename) for definitions in fixtures for one in definitions}
    return {file for file in files if file.is_relative_to(TESTS) and file.name != "stacks.py"} - {Path(__file__)}


def pytest_configure():
    """A shell has its background jobs ignore Ctrl-C, nohup SIGHUP, and so would all that tests start and end."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    gc.set_threshold(10_000, 10, 10)  # for 700: a traced function is many small things


def pytest_runtest_setup():
    """A test may have loaded TensorFlow: from the next one on its tuner and Python's collections leave it out."""
    leave_out_tuner()
    if "tensorflow" in sys.modules and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch):
    """Opening a model puts its folder in front of all modules, where its files would hide those of later tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


class SmallDisk:
    """A disk of 1 MiB and 100 files, which can be made as full as a test wants."""

    PAGE = os.sysconf("SC_PAGE_SIZE")

    def __init__(self, root):
        self.root = root
        self._fill = root / ".fill"

    def leave(self, pages=None, files=None):
        """Fill it up to so many pages and files; None: they do not matter."""
        shutil.rmtree(self._fill, ignore_errors=True)
        self._fill.mkdir()
        with (self._fill / "pages").open("wb") as file:
            free = os.statvfs(self.root).f_bavail - pages if pages is not None else 0
            if free > 0:
                os.posix_fallocate(file.fileno(), 0, free * self.PAGE)
        if files is not None:
            for number in range(os.statvfs(self.root).f_ffree - files):
                (self._fill / str(number)).touch()

    def fuller_to_emptier(self, step=1):
        """Have it full at every moment of what is written to it, and in the end not full any more."""
        for files in range(12):
            self.leave(files=files)
            yield f"{files} files left"
        for pages in range(0, 100, step):
            self.leave(pages=pages)
            yield f"{pages} pages left"
        self.leave()
        yield None


@pytest.fixture
def small_disk(tmp_path):
    """A `SmallDisk`; skipped where none can be mounted."""
    root = tmp_path / "disk"
    root.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=100,mode=0700", "tmpfs", str(root)]
    mounted = shutil.which("mount") and subprocess.run(["mount", *options], capture_output=True, timeout=60)
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here; needs root")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def environment():
    return Environment.here()


@pytest.fixture
def measured(environment):
    """A function that makes a Measurement of given samples, as if they had been taken."""

    def measured(name, seconds, **changes):
        fields = {
            "name": name,
            "seconds": tuple(float(value) for value in seconds),
            "calls_per_sample": 1,
            "first_call_seconds": 0.5,
            "warm_up_seconds": (),
            "precision": 0.01,
            "stopped": Stop.PRECISION,
            "read_cost_seconds": 1e-7,
            "memory": MEMORY,
            "environment": environment,
            "conditions": QUIET,
        }
        return Measurement(**fields | changes)

    return measured


@pytest.fixture
def noisy(measured):
    """A function that makes a Measurement of samples around a median, with noise that does not drift."""

    def noisy(name, median, *, spread=0.01, samples=200, seed=0):
        factors = np.random.default_rng(seed).normal(1, spread, samples)
        return measured(name, median * np.clip(factors, 0.5, None))

    return noisy


@pytest.fixture
def tfperf_command(tmp_path):
    """A function that runs the command line in a process of its own, in an empty folder; it never outlives the test."""

    def run(*arguments, timeout=120, **options):
        command = [sys.executable, "-m", "tfperf", *map(str, arguments)]
        environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout, **options
        )

    return run


@pytest.fixture
def run_python():
    """Run a program in a fresh Python, and return what it prints."""

    def run(program, **variables):
        # -S would lose the packages; -I would lose PYTHONPATH. A clean copy of this environment is enough.
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
