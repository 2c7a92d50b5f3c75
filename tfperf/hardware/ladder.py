"""The latency ladder: how far each kind of memory is, what a burst, a shared cache line and vectors change."""

import functools
import importlib.util
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tfperf.errors import HardwareError
from tfperf.hardware.processor import Cache, data_caches
from tfperf.hardware.repeating import Repeats, Sample, TimedTask, doubts_about, in_turns, on_change
from tfperf.measure import Doubt, Environment
from tfperf.measure.value import Value
from tfperf.system import usable_cores

__all__ = [
    "Access",
    "Ladder",
    "RandomReads",
    "Sharing",
    "chain_of",
    "check_numba",
    "measure_ladder",
]

FORMAT: Literal["tfperf ladder"] = "tfperf ladder"
VERSION: Literal[1] = 1

LINE = 64
"""Bytes between two numbers that the chase meets: a cache line."""

NUMBER = 8
"""Bytes of an int64."""

SMALLEST, LARGEST = 16 * 2**10, 256 * 2**20
"""Bytes of the working sets, in powers of two; with --quick of four."""

PAGE = 4096
"""Bytes."""

APART = 256
"""Bytes between two counters that surely share no line, nor a pair of lines that is fetched together."""

VECTOR_NUMBERS = 2048
"""float32, of which two arrays stay in the first cache."""

SAMPLE_SECONDS = 2e-3

SHARING_SAMPLES, SHARING_PASSES = 21, 5

TIME_LIMIT = 10.0
"""Seconds after which figures that do not agree are not measured again."""


class Access(Value):
    """How long it takes to reach numbers in a working set of this size."""

    working_set: int = Field(gt=0, description="bytes")
    random_seconds: float = Field(gt=0, description="to the next number, in another line at a random place")
    burst_seconds: float = Field(gt=0, description="for 8 bytes, where all are read from front to back")


class Sharing(Value):
    """How long it takes to add 1 to a number in memory, while a second thread adds 1 to another."""

    way: Literal["plain", "atomic"] = Field(
        description="plain: read, add and write, which a core may do in its own buffer; atomic: in one instruction, "
        "for which it must have the cache line to itself"
    )
    same_line_seconds: float = Field(gt=0, description="both numbers in one cache line")
    own_line_seconds: float = Field(gt=0, description="each in a line of its own")

    @property
    def times(self) -> float:
        """How many times as long it takes in one line."""
        return self.same_line_seconds / self.own_line_seconds


class Ladder(Value):
    """What memory costs on this machine. Immutable."""

    format: Literal["tfperf ladder"] = FORMAT
    version: Literal[1] = VERSION
    environment: Environment
    quick: bool
    caches: tuple[Cache, ...] = Field(description="as the system tells; empty where it does not")
    accesses: tuple[Access, ...] = Field(min_length=1)
    sharing: tuple[Sharing, ...] = Field(description="empty: there is one core only")
    scalar_seconds: float = Field(gt=0, description="for a float32 multiplied and added to, one by one")
    vector_seconds: float = Field(gt=0, description="the same loop with vector instructions")
    doubts: tuple[Doubt, ...] = ()


def check_numba() -> None:
    """Say so where what compiles the loops is missing.

    Raises:
        HardwareError: it is not installed.
    """
    if importlib.util.find_spec("numba") is None:
        raise HardwareError("expected Numba, which compiles the latency ladder's loops; pip install 'tfperf[hardware]'")


def measure_ladder(quick: bool = False, on_step: Callable[[str], None] = lambda _: None) -> Ladder:
    """Measure it, in this process; about 10 s, quick about 5.

    Args:
        quick: fewer working sets, and fewer samples of each.
        on_step: is told what is being measured.

    Raises:
        HardwareError: Numba is missing.
    """
    check_numba()
    on_step("latency ladder: compiling the loops")
    from tfperf.hardware import ladder_loops as loops

    sizes = [SMALLEST]
    while sizes[-1] < LARGEST:
        sizes.append(sizes[-1] * (4 if quick else 2))
    seconds = 0.03 if quick else 0.06
    tasks = [
        TimedTask("float32, one by one", functools.partial(_scaling, loops.SCALAR)),
        TimedTask("float32, in vectors", functools.partial(_scaling, loops.VECTOR)),
    ]
    tasks += [TimedTask(_name("random", size), functools.partial(_chasing, loops.chase, size)) for size in sizes]
    tasks += [TimedTask(_name("burst", size), functools.partial(_reading, loops.total, size)) for size in sizes]
    tell = on_change(on_step, lambda name: f"latency ladder: {name.partition(',')[0]}")
    repeats = in_turns(tasks, seconds, time_limit=TIME_LIMIT, on_turn=tell)
    found = {one.name: one.seconds for one in repeats}
    on_step("latency ladder: two threads on one line")
    counting: dict[Literal["plain", "atomic"], Any] = {}
    if usable_cores() > 1:
        counting = {"plain": loops.count, "atomic": loops.count_at_once}
    shared = {
        (way, apart): Repeats(
            f"two threads, {way}, {apart} bytes apart", tuple(_sharing(count, apart) for _ in range(SHARING_PASSES))
        )
        for way, count in counting.items()
        for apart in (NUMBER, APART)
    }
    return Ladder(
        environment=Environment.here(),
        quick=quick,
        caches=data_caches(),
        accesses=tuple(
            Access(
                working_set=size,
                random_seconds=found[_name("random", size)],
                burst_seconds=found[_name("burst", size)],
            )
            for size in sizes
        ),
        sharing=tuple(
            Sharing(way=way, same_line_seconds=shared[way, NUMBER].seconds, own_line_seconds=shared[way, APART].seconds)
            for way in counting
        ),
        scalar_seconds=found["float32, one by one"],
        vector_seconds=found["float32, in vectors"],
        doubts=doubts_about([*repeats, *shared.values()]),
    )


class RandomReads:
    """Random reads of memory, one after the other or several at once.

    A chain is a row of reads in which each one tells where the next is, so that a chain waits for each of its reads.
    Several chains do not wait for each other.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        """Write the chain into so many bytes of memory.

        Raises:
            HardwareError: Numba is missing.
        """
        check_numba()
        self._ring = _ring(size, seed)
        self._following = chain_of(size, seed)
        self._met: dict[int, int] = {}

    def read(self, reads: int, chains: int = 1) -> int:
        """Do so many reads, as many in each chain; the next call with as many chains goes on behind them.

        Returns:
            The sum of the places that were read: the same for any number of chains, as they share one ring.
        """
        if chains < 1 or reads % chains or not 0 < reads <= len(self._ring):
            wanted = f"expected reads from 1 to {len(self._ring)}, as many for each chain"
            raise ValueError(f"{wanted}. Received: {reads} reads, {chains} chains")
        from tfperf.hardware import ladder_loops as loops

        begins = self._met.get(chains, 0) + np.arange(0, reads, reads // chains)
        self._met[chains] = int(begins[0]) + reads
        places = self._ring[begins % len(self._ring)].astype(np.uint64)
        return int(loops.chase_side_by_side(self._following, places, reads // chains))


def chain_of(size: int, seed: int = 0) -> NDArray[np.uint64]:
    """An array of so many bytes that holds one ring through all its lines in random order: index -> next index.

    Memory that is asked for at random cannot be fetched before it is asked for, nor two places at once.
    """
    order = _ring(size, seed)
    following = np.zeros(size // NUMBER, np.uint64)
    following[order] = np.roll(order, -1)
    return following


def _ring(size: int, seed: int) -> NDArray[np.int64]:
    """The first index of each line of an array of so many bytes, in random order."""
    return np.random.default_rng(seed).permutation(size // LINE) * (LINE // NUMBER)


def _name(way: str, size: int) -> str:
    return f"{way}, {size // 1024} KiB"


def _chasing(chase: Any, size: int) -> Sample:
    following, place = chain_of(size), 0
    place = chase(following, place, min(len(following), 100_000))  # a small set is in its cache after one round
    steps = _calls(lambda steps: chase(following, 0, steps))

    def sample() -> float:
        nonlocal place  # goes on, or a large set would be as small as the part of it that is met again
        start = time.perf_counter()
        place = chase(following, place, steps)
        return (time.perf_counter() - start) / steps

    return sample


def _reading(total: Any, size: int) -> Sample:
    numbers = _from_a_line_on(size).view(np.int64)
    numbers[:] = 1
    passes = _calls(lambda passes: total(numbers, passes))
    return lambda: _seconds(lambda: total(numbers, passes)) / passes / len(numbers)


def _scaling(loop: Any) -> Sample:
    x, y = _beside_each_other(VECTOR_NUMBERS)
    factor = np.float32(0.5)
    passes = _calls(lambda passes: loop(x, y, factor, passes))
    return lambda: _seconds(lambda: loop(x, y, factor, passes)) / passes / VECTOR_NUMBERS


def _beside_each_other(numbers: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Ones and zeros, (numbers,) each, that begin where a line does, in different places of a page.

    The loop would take longer where one is stored while the other is read in the same place of another page.
    """
    size = 4 * numbers
    room = _from_a_line_on(2 * size + PAGE // 2)
    x, y = room[:size].view(np.float32), room[-size:].view(np.float32)
    x[:] = 1
    return x, y


def _from_a_line_on(size: int) -> NDArray[np.uint8]:
    """Zeros, (size,), that begin where a cache line does: vectors that cross lines take up to twice as long."""
    room = np.zeros(size + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + size]


def _sharing(count: Any, apart: int) -> float:
    """Median seconds of adding 1, by two threads at once to counters so many bytes apart."""
    room = np.zeros((APART + LINE) // NUMBER * 2, np.int64)
    first = -(room.ctypes.data // NUMBER) % (LINE // NUMBER)  # where a line begins
    places = first, first + apart // NUMBER
    steps = _calls(lambda steps: count(room, first, steps, 0))
    both = threading.Barrier(2)

    def add(place: int) -> float:
        both.wait()
        return _seconds(lambda: count(room, place, steps, 0)) / steps

    with ThreadPoolExecutor(2) as threads:
        # The median: the best decile would be those in which the threads hardly met.
        return median(max(threads.map(add, places)) for _ in range(SHARING_SAMPLES))


def _calls(work: Callable[[int], object]) -> int:
    """How many of it make a sample."""
    calls = 1
    while (seconds := _seconds(functools.partial(work, calls))) < SAMPLE_SECONDS / 2:
        calls *= 2 if seconds > SAMPLE_SECONDS / 16 else 8
    return calls


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
