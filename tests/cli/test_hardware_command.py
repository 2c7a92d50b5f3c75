"""`tfperf hardware`: its tables, files and picture, what it refuses, and that Ctrl-C leaves nothing."""

import contextlib
import importlib.util
import re
import signal
import subprocess
import sys

import psutil
import pytest

from tfperf.cli import main
from tfperf.hardware import machine
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate, Refusal, measuring
from tfperf.hardware.ladder import Access, Ladder, Sharing
from tfperf.hardware.machine import Machine, machine_cache
from tfperf.hardware.processor import Cache
from tfperf.measure import Doubt, Environment
from tfperf.measure.results import read_document, write_result

DEADLINE = 240
"""Seconds; what is waited for takes ten."""


def made_up():
    return Ceilings(
        environment=Environment.here(),
        products=tuple(
            ProductRate(dtype=dtype, threads=threads, size=size, rows=rows, flops_per_second=threads * size * 1e8)
            for dtype in ("float32", "int8")
            for threads in (1, 2)
            for rows, size in ((None, 64), (2048, 1024))
        ),
        bandwidths=tuple(
            Bandwidth(
                threads=threads,
                working_set=size,
                bytes_per_second=rate * threads,
                kind=kind,
                repeatable=(threads, size, kind) != (2, 2**20, "weights"),
            )
            for threads in (1, 2)
            for size, rate in ((2**14, 3e11), (2**20, 1e11), (2**28, 2e10))
            for kind in ("pointwise", "weights")
        ),
        calls=(CallCost(name="eager op", seconds=1.3e-5),),
        disk_read_bytes_per_second=1.5e9,
        disk_repeatable=False,
        loopback_seconds=None,
        loopback_bytes_per_second=None,
        refusals=(Refusal(name="float16 products", reason="no kernel for [bold]half[/bold]"),),
        doubts=(Doubt(name="noisy", words="too noisy: for 3 of 9 figures", advice="measure again"),),
    )


LADDER = Ladder(
    environment=Environment.here(),
    quick=False,
    caches=(Cache(level=1, size=48 * 2**10, line=64, shared_by=1),),
    accesses=tuple(
        Access(working_set=size, random_seconds=far, burst_seconds=far / 100)
        for size, far in ((2**14, 1.5e-9), (2**28, 1.1e-7))
    ),
    sharing=(Sharing(way="atomic", same_line_seconds=2e-8, own_line_seconds=2e-9),),
    scalar_seconds=3e-10,
    vector_seconds=3e-11,
)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache in which both measurements are."""
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    ceilings = machine_cache(None, "ceilings", Ceilings)
    write_result(ceilings.path, made_up())
    write_result(machine_cache(None, "ladder", Ladder).path, LADDER)
    return tmp_path


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["hardware", *map(str, arguments)])
    return ended.value.code


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_what_is_kept_is_shown_and_written(kept, capfd, ending):
    assert run("--json", "deep/m.json", "--plot", f"deep/m.{ending}") == 0
    told = " ".join(capfd.readouterr().out.split())  # notes are as wide as the table above them
    for words in (
        "float32 products 102 G 205 G",
        "float16 products: no kernel for [bold]half[/bold]",
        "100 GB/s 200 GB/s 100 GB/s ~200 GB/s",
        "~: too noisy here, no two passes agree within 5 %",
        "300 GB/s",
        "eager op 13 us",
        "disk, read ~1.5 GB/s",
        "not told",
        "doubt: too noisy: for 3 of 9 figures: measure again",
        "110 ns",
        "two threads that count, atomic: 20 ns with both numbers in one cache line, 2 ns in two",
    ):
        assert words in told, words
    written = read_document(kept / "deep" / "m.json", Machine)
    assert written.ladder == LADDER
    assert written.ceilings.peak("int8", 2) == 2 * 1024 * 1e8
    picture = (kept / "deep" / f"m.{ending}").read_bytes()
    assert picture.startswith(b"\x89PNG") if ending == "png" else b"<svg" in picture
    assert {path.name for path in kept.iterdir()} == {"cache", "deep"}


def test_what_is_kept_is_shown_without_tensorflow(kept):
    code = """
import sys
from tfperf.cli import main
try:
    main(["hardware"])
except SystemExit as ended:
    sys.exit(ended.code or ("TensorFlow was loaded" if "tensorflow" in sys.modules else 0))
"""
    command = [sys.executable, "-P", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (shown.returncode, shown.stderr.strip()) == (0, "")
    assert "float32 products" in shown.stdout


def test_without_numba_it_says_what_to_install_in_place_of_the_ladder(kept, capfd, monkeypatch):
    genuine = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else genuine(name, *rest)
    )
    machine_cache(None, "ladder", Ladder).path.unlink()
    assert run("--json", "m.json") == 0
    assert "No latency ladder: expected Numba" in (told := capfd.readouterr().out)
    assert "pip install 'tfperf[hardware]'" in told
    assert read_document(kept / "m.json", Machine).ladder is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "0"], "--threads"),
        (["--threads", "1,x"], "--threads"),
        (["--plot", "picture.pdf"], ".svg or .png"),
        (["--plot", "cache"], ".svg or .png"),
        (["--json", "cache"], "--json"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_measures_nothing(kept, capfd, arguments, words):
    assert run(*arguments) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert words in told.err
    assert {path.name for path in kept.iterdir()} == {"cache"}


def test_a_quick_run_measures_and_shows_how_far_it_is(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def measure_ceilings(threads, quick, on_step):
        assert (threads, quick) == ((1,), True)
        on_step("1 thread: float32 products")
        return made_up()

    def measure_ladder(quick, on_step):
        assert quick
        on_step("latency ladder: random")
        return LADDER

    monkeypatch.setattr(measuring, "measure_ceilings", measure_ceilings)
    monkeypatch.setattr(machine, "measure_ladder", measure_ladder)
    assert run("--quick", "--threads", "1", "--json", "m.json") == 0
    told = capfd.readouterr()
    assert [words in told.err for words in ("1 thread: float32 products\n", "latency ladder: random\n")] == [True] * 2
    assert "float32 products" in told.out
    assert read_document(tmp_path / "m.json", Machine).ladder == LADDER
    # of other threads than usual: not kept
    assert [path.name.startswith("ladder-quick-") for path in (tmp_path / "cache" / "hardware").iterdir()] == [True]


@pytest.mark.timeout(DEADLINE + 30)
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "tfperf", "hardware", "--threads", "1", "--json", "m.json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if re.match("1 thread: ", line):
                    break
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=DEADLINE) == 130
        finally:
            process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.wait(timeout=10)
    assert not list(tmp_path.rglob("*.json"))
