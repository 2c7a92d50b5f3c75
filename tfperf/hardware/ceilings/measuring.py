"""Measures the ceilings of this machine: a fresh process for each number of threads, then disk and loopback."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

from tfperf.caching import cache_folder
from tfperf.errors import CacheError, HardwareError
from tfperf.hardware.ceilings.disk import read_disk
from tfperf.hardware.ceilings.figures import Ceilings, Order, Part
from tfperf.hardware.ceilings.loopback import measure_loopback
from tfperf.hardware.repeating import Repeats, doubts_about
from tfperf.importing import START_UP_NOISE
from tfperf.processes import PIPE, ChildProcess, Dialogue, LastBytes, Patience
from tfperf.system import thread_words, usable_cores

__all__ = ["CeilingProcess", "OnStep", "measure_ceilings"]

DEADLINE = 300.0
"""Seconds for a process, which needs less than a minute on 2 quiet cores."""

DISK_BYTES, QUICK_DISK_BYTES = 128 * 2**20, 32 * 2**20
LOOPBACK_BYTES, QUICK_LOOPBACK_BYTES = 256 * 2**20, 64 * 2**20

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "1"}
"""What TensorFlow only informs of would be taken for the last words of a process that dies."""

OnStep = Callable[[str], None]


def measure_ceilings(
    threads: Sequence[int] | None = None,
    quick: bool = False,
    on_step: OnStep = lambda _: None,
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
        on_step: is told what is being measured.
        deadline: seconds for each process, after which it is ended.

    Raises:
        HardwareError: a process failed, died, or was not done in time.
        ValueError: a number of threads is under 1.
    """
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
        started = [processes.enter_context(CeilingProcess(order, deadline, on_step)) for order in orders]
        for process in started:
            process.wait_until_ready()  # side by side they load TensorFlow and compile, one by one they measure
        for process in started:
            if threads is None and any(part.device != "CPU" for part in parts.values()):
                break
            parts[process.threads] = process.measure()
    on_step("disk")
    disk = None
    with contextlib.suppress(CacheError):  # then there is no disk to speak of
        disk = read_disk(cache_folder("hardware"), QUICK_DISK_BYTES if quick else DISK_BYTES)
    on_step("loopback network")
    loopback = measure_loopback(QUICK_LOOPBACK_BYTES if quick else LOOPBACK_BYTES)
    most = parts[counts[0]]
    inner = [parts[count] for count in sorted(parts)]
    repeats = [
        Repeats(f"{name}, {thread_words(count)}", passes)
        for count, part in parts.items()
        for name, passes in part.passes.items()
    ]
    repeats += [*((disk,) if disk else ()), *(loopback or ())]
    return Ceilings(
        environment=most.environment,
        device=most.device,
        quick=quick,
        products=tuple(one for part in inner for one in part.products),
        bandwidths=tuple(one for part in inner for one in part.bandwidths),
        calls=most.calls,
        to_device_bytes_per_second=most.to_device_bytes_per_second,
        from_device_bytes_per_second=most.from_device_bytes_per_second,
        disk_read_bytes_per_second=disk and 1 / disk.seconds,
        loopback_seconds=loopback and loopback.round_trip_seconds,
        loopback_bytes_per_second=loopback and loopback.bytes_per_second,
        disk_repeatable=disk is None or disk.agree,
        loopback_repeatable=all(one.agree for one in loopback or ()),
        refusals=most.refusals,
        doubts=doubts_about(repeats),
    )


class CeilingProcess:
    """A process that measures with one number of threads: TensorFlow cannot change that number once it runs.

    It is `python -m tfperf.hardware.ceilings.worker`; it and all that it started end with this object's `with` block.
    """

    def __init__(self, order: Order, deadline: float, tell: Callable[[str], None]) -> None:
        """Start it; it loads TensorFlow and compiles, and measures nothing yet.

        Args:
            order: what it is to measure.
            deadline: seconds that it may be waited for, in all.
            tell: is told what it does.
        """
        self.threads = order.threads
        self._tell, self._deadline, self._patience = tell, deadline, Patience(deadline)
        self._process = ChildProcess(
            [sys.executable, "-P", "-m", "tfperf.hardware.ceilings.worker", order.model_dump_json()],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            environment=QUIET | os.environ,
        )
        self._dialogue = Dialogue(self._process)
        assert self._process.stderr is not None
        self._complaints = LastBytes(self._process.stderr)

    def wait_until_ready(self) -> None:
        """Return when it can measure.

        Raises:
            HardwareError: it failed, died, or was not ready in time.
        """
        self._next("ready", self._listen)

    def measure(self) -> Part:
        """Have it measure.

        Raises:
            HardwareError: it failed, died, or was not done in time.
        """
        told = self._next("part", lambda: self._dialogue.ask("begin", self._patience))
        return Part.model_validate_json(json.dumps(told))  # which takes a list for a tuple, where JSON has no other

    def __enter__(self) -> Self:
        """End the process at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, whatever it does: it has nothing to put in order."""
        self._process.close()

    def _next(self, wanted: str, told: Callable[[], Any]) -> Any:
        """What it tells under this name; what it tells before is what it does."""
        try:
            while wanted not in (words := told()):
                self._tell(f"{thread_words(self.threads)}: {words['doing']}")
                told = self._listen
            return words[wanted]
        except TimeoutError as error:
            self._process.end()
            raise HardwareError(
                f"expected the ceilings to be measured within {self._deadline:g} s; the process was ended"
            ) from error
        except EOFError as error:
            code = self._process.end()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise HardwareError(f"the process that measures the ceilings {how}: {self._last_words()}") from error

    def _listen(self) -> Any:
        return self._dialogue.listen(self._patience)

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._complaints.text().splitlines()]
        said = [line for line in lines if line and not START_UP_NOISE.search(line)]
        return said[-1][:300] if said else "it said nothing"
