"""The latency ladder: what its loops do, what it finds, and what it says where Numba is missing."""

import importlib.util
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.errors import HardwareError
from tfperf.hardware import machine
from tfperf.hardware.ladder import Ladder, RandomReads, chain_of, measure_ladder
from tfperf.hardware.ladder_loops import SCALAR, VECTOR, chase, count, count_at_once, total
from tfperf.hardware.machine import ladder_of_this_machine
from tfperf.measure.results import read_document, write_result
from tfperf.system import usable_cores


@given(lines=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_the_chain_is_one_ring_through_every_line(lines, seed):
    following, place, met = chain_of(lines * 64, seed), 0, []
    for _ in range(lines):
        met.append(place)
        place = following[place]
    assert sorted(met) == [line * 8 for line in range(lines)]
    assert place == 0
    assert chase(following, 0, lines) == 0
    assert chase(following, 0, lines - 1) == met[-1]


def test_a_random_chain_is_in_no_order():
    following = chain_of(2**16)
    steps = following[::8].astype(int) - np.arange(0, len(following), 8)
    assert np.mean(np.abs(steps) <= 8) < 0.05


@given(chains=st.sampled_from([1, 2, 4, 8]), calls=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_chains_side_by_side_read_what_one_chain_reads_and_go_on_behind_it(chains, calls, seed):
    reads, following, ring = RandomReads(64 * 40, seed), chain_of(64 * 40, seed), [0]
    while len(ring) < 40:
        ring.append(int(following[ring[-1]]))
    sums = [reads.read(16, chains) for _ in range(calls)]
    from_each_place = [
        [sum(ring[(begin + 16 * call + step) % 40] for step in range(16)) for call in range(calls)]
        for begin in range(40)
    ]
    assert sums in from_each_place
    assert sums == [RandomReads(64 * 40, seed).read(16), *sums[1:]]


@pytest.mark.parametrize(("number", "chains"), [(0, 1), (41, 1), (16, 3), (16, 0)])
def test_reads_that_cannot_be_shared_out_are_refused(number, chains):
    with pytest.raises(ValueError, match=f"Received: {number} reads, {chains} chains"):
        RandomReads(64 * 40).read(number, chains)


def test_the_loops_compute_what_they_say():
    numbers = np.arange(100, dtype=np.int64)
    assert total(numbers, 3) == sum(int(number) ^ turn for turn in range(3) for number in numbers)
    counts = np.zeros(16, np.int64)
    count(counts, 3, 1000, 0)
    count_at_once(counts, 3, 500, 0)
    assert counts[3] == counts.sum() == 1500
    x = np.random.default_rng(0).random(100, np.float32)
    answers = [np.zeros(100, np.float32) for _ in range(2)]
    for loop, y in zip((SCALAR, VECTOR), answers, strict=True):
        loop(x, y, np.float32(0.5), 3)
    assert np.array_equal(*answers)
    np.testing.assert_allclose(answers[0], x * 1.75, rtol=1e-6)


def test_one_loop_has_vector_instructions_and_the_other_none():
    machine_code = ["".join(loop.inspect_asm().values()) for loop in (SCALAR, VECTOR)]
    of_vectors = [any(name in code for name in ("mulps", "fmla", "vfmadd231ps")) for code in machine_code]
    assert of_vectors == [False, True]


def test_the_atomic_addition_loses_nothing_between_threads():
    counts, steps = np.zeros(8, np.int64), 2_000_000
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: count_at_once(counts, 0, steps, 0), range(4)))
    assert counts[0] == 4 * steps


@pytest.fixture(scope="module")
def found():
    steps = []
    return measure_ladder(quick=True, on_step=steps.append), steps


def test_a_quick_ladder_has_every_rung(found):
    ladder, steps = found
    sizes = [one.working_set for one in ladder.accesses]
    assert sizes[0] == 16 * 2**10
    assert sizes[-1] == 256 * 2**20
    assert all(high == 4 * low for low, high in itertools.pairwise(sizes))
    # What no disturbance turns round: memory is many times as far as the first cache, and a burst far shorter.
    assert ladder.accesses[-1].random_seconds > 3 * ladder.accesses[0].random_seconds
    assert ladder.accesses[-1].random_seconds > 3 * ladder.accesses[-1].burst_seconds
    assert ladder.scalar_seconds > ladder.vector_seconds
    assert [one.way for one in ladder.sharing] == (["plain", "atomic"] if usable_cores() > 1 else [])
    assert all(one.times > 0 for one in ladder.sharing)
    assert "latency ladder: random" in steps
    assert all(one != other for one, other in itertools.pairwise(steps))  # told when it changes


def test_it_is_read_back_as_it_was_written(found, tmp_path):
    write_result(tmp_path / "l.json", found[0])
    assert read_document(tmp_path / "l.json", Ladder) == found[0]


def test_it_is_measured_once(found, tmp_path, monkeypatch):
    asked = []

    def measure(quick=False, on_step=None):
        asked.append(quick)
        return found[0]

    monkeypatch.setattr(machine, "measure_ladder", measure)
    for _ in range(2):
        assert ladder_of_this_machine(tmp_path, quick=True) == found[0]
    assert asked == [True]
    ladder_of_this_machine(tmp_path)
    ladder_of_this_machine(tmp_path, quick=True)
    assert asked == [True, False]


def test_without_numba_one_line_names_what_to_install(monkeypatch):
    genuine = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else genuine(name, *rest)
    )
    with pytest.raises(HardwareError, match=r"pip install 'tfperf\[hardware\]'") as told:
        measure_ladder()
    assert "\n" not in str(told.value)
