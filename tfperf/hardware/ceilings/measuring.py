"""Measures the ceilings of this machine: a fresh process for each number of threads, then disk and loopback."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tfperf.caching import cache_folder
from tfperf.cores import usable_cores
from tfperf.errors import CacheError
from tfperf.hardware.ceilings import Ceilings, thread_words
from tfperf.hardware.ceilings.disk import read_disk
from tfperf.hardware.ceilings.loopback import measure_loopback
from tfperf.hardware.ceilings.part import Order, Part
from tfperf.hardware.ceilings.process import CeilingProcess
from tfperf.hardware.keeping import keeping
from tfperf.hardware.repeating import Repeats, doubts_about

__all__ = ["ceilings_of_this_machine", "measure_ceilings"]

DEADLINE = 300.0
"""Seconds for a process, which needs less than a minute on 2 quiet cores."""

DISK_BYTES, QUICK_DISK_BYTES = 128 * 2**20, 32 * 2**20
LOOPBACK_BYTES, QUICK_LOOPBACK_BYTES = 256 * 2**20, 64 * 2**20

OnStep = Callable[[str], None]


def measure_ceilings(
    threads: Sequence[int] | None = None,
    quick: bool = False,
    progress: OnStep | None = None,
    deadline: float = DEADLINE,
) -> Ceilings:
    """Measure them now, through TensorFlow: three quarters of a minute on 2 cores, quick less than half of it.

    Each figure is the best decile of many short samples, so that of a machine that others use it tells what it gives
    undisturbed; taken in two passes, which must agree within 5 %. Those that do not are taken again while there is
    time, those that matter most first; where they still do not agree, a doubt says so.

    Args:
        threads: of TensorFlow, beside 1, whose process measures the memory for all; a process for each. None: all
            cores. With a GPU, which is then what is measured, all cores only.
        quick: fewer sizes and samples.
        progress: is told what is being measured.
        deadline: seconds for each process, after which it is ended.

    Raises:
        HardwareError: a process failed, died, or was not done in time.
        ValueError: a number of threads is under 1.
    """
    tell = progress or _ignore
    wanted = list(threads if threads is not None else (usable_cores(),))
    if not wanted or min(wanted) < 1:
        raise ValueError(f"expected 1 thread or more. Received: threads={threads}")
    counts = sorted({1, *wanted}, reverse=True)
    memory = tuple(reversed(counts))
    orders = [
        Order(threads=count, quick=quick, calls=count == counts[0], memory=memory if count == 1 else ())
        for count in counts
    ]
    parts: dict[int, Part] = {}
    with contextlib.ExitStack() as processes:
        started = [processes.enter_context(CeilingProcess(order, deadline, tell)) for order in orders]
        for process in started:
            process.wait_until_ready()  # side by side they load TensorFlow and compile, one by one they measure
        for process in started:
            if threads is None and any(part.device != "CPU" for part in parts.values()):
                break
            parts[process.threads] = process.measure()
    tell("disk")
    disk = None
    with contextlib.suppress(CacheError):  # then there is no disk to speak of
        disk = read_disk(cache_folder("hardware"), QUICK_DISK_BYTES if quick else DISK_BYTES)
    tell("loopback network")
    loopback = measure_loopback(QUICK_LOOPBACK_BYTES if quick else LOOPBACK_BYTES)
    most = parts[counts[0]]
    inner = [parts[count] for count in sorted(parts)]
    repeats = [
        Repeats(f"{name}, {thread_words(count)}", passes)
        for count, part in parts.items()
        for name, passes in part.passes.items()
    ]
    repeats += [*(disk or ()), *(loopback or ())]
    return Ceilings(
        environment=most.environment,
        device=most.device,
        quick=quick,
        products=tuple(one for part in inner for one in part.products),
        bandwidths=tuple(one for part in inner for one in part.bandwidths),
        calls=most.calls,
        to_device_bytes_per_second=most.to_device_bytes_per_second,
        from_device_bytes_per_second=most.from_device_bytes_per_second,
        disk_read_bytes_per_second=disk and disk.bytes_per_second,
        loopback_seconds=loopback and loopback.round_trip_seconds,
        loopback_bytes_per_second=loopback and loopback.bytes_per_second,
        disk_repeatable=all(one.agree for one in disk or ()),
        loopback_repeatable=all(one.agree for one in loopback or ()),
        refusals=most.refusals,
        doubts=doubts_about(repeats),
    )


def ceilings_of_this_machine(
    cache: Path | None = None, fresh: bool = False, quick: bool = False, progress: OnStep | None = None
) -> Ceilings:
    """Those that were kept from an earlier measurement on this machine with these versions; else measured now.

    Args:
        cache: folder in which they are kept; None: tfperf's own.
        fresh: measure them in any case.
        quick: fewer sizes and samples will do; thorough ones that are kept do as well.
        progress: is told what is being measured.

    Raises:
        HardwareError: as `measure_ceilings`.
    """
    thorough = keeping(cache, "ceilings", Ceilings)
    if not quick:
        return thorough.get(lambda: measure_ceilings(progress=progress), fresh)
    if not fresh and (kept := thorough.kept()):
        return kept
    return keeping(cache, "ceilings-quick", Ceilings).get(lambda: measure_ceilings(None, True, progress), fresh)


def _ignore(_: str) -> None:
    """Nobody wants to be told."""
