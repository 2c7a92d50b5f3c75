"""tfperf.measure.comparing: interleaving, and verdicts on noise that was recorded on a real machine."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.measure import comparing
from tfperf.measure.comparing import compare
from tfperf.measure.comparison import FEWEST_ROUNDS, Verdict
from tfperf.measure.measurement import Stop
from tfperf.measure.memory import MemoryPeak

TRIES = {0.0005: 100, 0.005: 40}
"""Seconds of work: comparisons simulated on each trace. Short work takes many samples a turn, long work one."""


@pytest.fixture
def compared(fake):
    """Compares fake work on a fake machine."""

    def run(machine, candidates, **settings):
        return compare(candidates, clock=machine.clock, synchronize=fake.nothing, **settings)

    return run


@pytest.fixture
def tries(fake, compared):
    """Compares work with `larger` times as much of it, many times over, on the recorded noise of a trace."""

    def run(trace: str, seconds: float, larger: float = 1.0, *, count: int) -> Counter:
        verdicts = Counter()
        for attempt in range(count):
            machine = fake.FakeMachine.replaying(trace, start=attempt / count)
            candidates = {"base": machine.work(seconds), "other": machine.work(seconds * larger)}
            result = compared(machine, candidates, seed=attempt)
            assert machine.time < 21
            verdicts[result.ratios[0].verdict] += 1
        return verdicts

    return run


# ---------------------------------------------------------------- verdicts on recorded noise


@pytest.mark.parametrize("seconds", TRIES)
def test_a_function_against_itself_on_recorded_noise(trace: str, seconds: float, tries) -> None:
    verdicts = tries(trace, seconds, count=TRIES[seconds])
    assert verdicts[Verdict.FASTER] + verdicts[Verdict.SLOWER] <= 0.03 * TRIES[seconds], verdicts


def test_equal_work_is_called_equal_where_the_noise_permits(tries) -> None:
    for trace in ("numpy_quiet", "numpy_loaded", "python_quiet", "python_loaded"):
        verdicts = tries(trace, 0.0005, count=40)
        assert verdicts[Verdict.NO_DIFFERENCE] >= 0.9 * 40, (trace, verdicts)


@pytest.mark.parametrize("seconds", TRIES)
def test_two_percent_is_seen_on_recorded_noise(trace: str, seconds: float, tries) -> None:
    verdicts = tries(trace, seconds, larger=1.02, count=TRIES[seconds] // 2)
    assert verdicts[Verdict.SLOWER] >= 0.9 * (TRIES[seconds] // 2), verdicts
    assert verdicts[Verdict.FASTER] == 0


def test_work_that_is_not_alike_in_length_is_compared_too(fake, compared) -> None:
    machine = fake.FakeMachine.replaying("numpy_quiet", 0.1)
    result = compared(machine, {"long": machine.work(0.02), "short": machine.work(2e-5)}, seed=0)
    ratio = result.ratio("long", "short")
    assert ratio.verdict is Verdict.FASTER
    assert ratio.estimate == pytest.approx(1000, rel=0.03)


def test_too_much_noise_gives_no_verdict(fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 2.0, size=10_000), unit_seconds=0.2)
    result = compared(machine, {"a": machine.work(0.2), "b": machine.work(0.2)}, seed=0)
    assert result.ratios[0].verdict is Verdict.TOO_NOISY


def test_spikes_do_not_tell_equal_work_apart(fake, compared) -> None:
    # One sample in ten takes twice as long: the mean of a turn is 10 % above its median.
    factors = np.where(np.random.default_rng(0).random(997) < 0.1, 2.0, 1.0)
    machine = fake.FakeMachine(factors, unit_seconds=5e-4)
    result = compared(machine, {"a": machine.work(5e-4), "b": machine.work(5e-4)}, seed=0)
    assert result.measurements[0].samples_per_turn > 2
    assert result.ratios[0].verdict is Verdict.NO_DIFFERENCE


@pytest.mark.parametrize("seed", range(5))
def test_equal_work_has_turns_of_equal_length(seed: int, fake, compared) -> None:
    # The median of two samples is their mean: with spikes it lies higher than the median of ten, and work
    # with shorter turns would look slower. One spike while the turns are planned must not make them differ.
    factors = np.ones(1009)
    factors[np.random.default_rng(seed).integers(0, 1009, size=200)] = 8.0
    machine = fake.FakeMachine(factors, unit_seconds=5e-4)
    result = compared(machine, {"a": machine.work(5e-4), "b": machine.work(5e-4)}, seed=seed)
    assert len({(m.samples_per_turn, m.calls_per_sample) for m in result.measurements}) == 1


# ---------------------------------------------------------------- interleaving


def logged(machine, seconds: float, names: str) -> tuple[dict, list[str]]:
    """Candidates that write down the order of their calls. 60 ms and more: one call a turn, none to refill caches."""
    log: list[str] = []

    def candidate(name: str):
        def work() -> None:
            log.append(name)
            machine.spend(seconds)

        return work

    return {name: candidate(name) for name in names}, log


def rounds_of(log: list[str], count: int) -> list[str]:
    """The calls in rounds, as words."""
    return ["".join(log[i : i + count]) for i in range(0, len(log), count)]


@pytest.mark.parametrize("names", ["ab", "abc", "abcdef"])
def test_every_round_gives_everyone_a_turn(names: str, fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.05, size=997))
    candidates, log = logged(machine, 0.06, names)
    result = compared(machine, candidates, seed=1, min_rounds=25)
    taken = result.rounds + len(result.measurements[0].warm_up_seconds)
    rounds = rounds_of(log[-taken * len(names) :], len(names))
    assert len(rounds) == taken >= 25
    assert all(sorted(turn) == sorted(names) for turn in rounds)


def test_the_order_is_random(fake, compared) -> None:
    def orders(seed: int | None) -> list[str]:
        machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.05, size=997))
        candidates, log = logged(machine, 0.06, "ab")
        result = compared(machine, candidates, seed=seed, min_rounds=40)
        taken = result.rounds + len(result.measurements[0].warm_up_seconds)
        return rounds_of(log[-taken * 2 :], 2)

    first = orders(1)
    # Of 40 or more fair draws, 20 % to 80 % in the first order: but for one case in 10,000.
    assert 0.2 < first.count("ab") / len(first) < 0.8
    assert orders(1) == first
    assert orders(2)[:40] != first[:40]
    assert orders(None)[:40] != orders(None)[:40]


def test_drift_cancels(fake, compared) -> None:
    # The machine becomes slower and slower: threefold over the run, and one round differs from the next by 1 %.
    factors = np.exp(np.linspace(0, math.log(3), 4000)) * np.random.default_rng(0).lognormal(0, 0.005, size=4000)
    machine = fake.FakeMachine(factors, unit_seconds=0.005)
    result = compared(machine, {"a": machine.work(0.06), "b": machine.work(0.06)}, seed=0, min_rounds=100)
    ratio = result.ratios[0]
    assert ratio.verdict is Verdict.NO_DIFFERENCE
    assert ratio.estimate == pytest.approx(1, abs=0.005)
    # One after the other they would differ by half the drift.
    seconds = result["a"].samples
    half = len(seconds) // 2
    assert np.median(seconds[half:]) / np.median(seconds[:half]) > 1.15


def test_a_disturbance_that_always_comes_second_hits_both(fake, compared) -> None:
    # Every other call is 30 % slower, whoever makes it.
    calls = itertools.count()
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.002, size=997))

    def work() -> None:
        machine.spend(0.06 * (1.3 if next(calls) % 2 else 1.0))

    result = compared(machine, {"a": work, "b": lambda: work()}, seed=0)
    assert result.ratios[0].verdict in (Verdict.NO_DIFFERENCE, Verdict.TOO_NOISY)
    assert result.ratios[0].estimate == pytest.approx(1, abs=0.15)


def test_short_work_refills_its_caches_untimed(fake, compared) -> None:
    # Whoever comes after another pays 5 ms to fetch its data; in use, alone, it would not.
    machine, before = fake.FakeMachine(read_cost=1e-7), []

    def candidate(name: str):
        def work() -> None:
            machine.spend(0.001 if before and before[-1] == name else 0.006)
            before.append(name)

        return work

    result = compared(machine, {"a": candidate("a"), "b": candidate("b")}, seed=0)
    assert result["a"].median == pytest.approx(0.001, rel=1e-3)
    assert max(result["b"].seconds) < 0.0011


def test_what_is_far_from_all_rests_once_that_is_known(fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.05, size=997))
    works = {
        "far": machine.work(2.0),
        "farther": machine.work(2.1),
        "near": machine.work(0.06),
        "as near": machine.work(0.06),
    }
    result = compared(machine, works, seed=0, rest_after=8, min_rounds=40, time_limit=60)
    turns = {name: len(result[name].turns) for name in works}
    assert max(turns["far"], turns["farther"]) < 20 < turns["near"] == turns["as near"] == result.rounds
    assert result.ratio("far", "near").verdict is Verdict.FASTER
    assert result.ratio("far", "near").estimate == pytest.approx(2.0 / 0.06, rel=0.05)
    all_along = compared(machine, works, seed=0, min_rounds=40, time_limit=120)
    assert len({len(all_along[name].turns) for name in works}) == 1


def test_nobody_rests_whose_ratio_to_the_fastest_is_not_known(fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.5, size=997), unit_seconds=0.06)
    works = {name: machine.work(0.06) for name in "abc"}
    result = compared(machine, works, seed=0, rest_after=8, time_limit=8)
    assert result.stopped is Stop.TIME_LIMIT
    assert {len(result[name].turns) for name in works} == {result.rounds}


def test_which_is_fastest_is_told_though_work_suddenly_takes_longer(fake, compared) -> None:
    def slowed():
        return fake.FakeMachine(np.array([1.0] * 25 + [2.5] * 10_000), unit_seconds=0.1)

    both = [compared(machine, {"far": machine.work(0.45), "near": machine.work(0.06)}, seed=0, time_limit=4, **options)
            for machine, options in ((slowed(), {}), (slowed(), {"rest_after": 8}))]  # fmt: skip
    assert both[0].rounds < FEWEST_ROUNDS <= both[1].rounds
    assert [one.ratio("far", "near").verdict for one in both] == [Verdict.TOO_FEW, Verdict.FASTER]
    assert sum(both[1]["far"].samples) < 3 * 4


def test_the_fewest_rounds_that_tell_anything_may_take_longer_where_it_is_patient(fake, compared) -> None:
    def of(time_limit, slower, **options):
        machine = fake.FakeMachine(np.array([1.0] * 25 + [slower] * 10_000), unit_seconds=0.1)
        works = {"one": machine.work(0.2), "other": machine.work(0.1)}
        return compared(machine, works, seed=0, time_limit=time_limit, **options)

    assert of(2, 2.5).ratio("one", "other").verdict is Verdict.TOO_FEW
    patient = of(2, 2.5, patient=True)
    assert patient.ratio("one", "other").verdict is Verdict.FASTER
    assert patient.rounds == FEWEST_ROUNDS  # beside those of warm-up
    assert patient.stopped is Stop.TIME_LIMIT
    least = of(2, 30, patient=True)  # 8 rounds would take more than three times the limit
    assert least.rounds < FEWEST_ROUNDS
    assert 2 < sum(sum(least[name].samples) for name in ("one", "other")) < 3 * 2 + 30 * (0.2 + 0.1)
    assert of(20, 2.5, patient=True).rounds == of(20, 2.5).rounds > FEWEST_ROUNDS


def test_one_that_is_far_too_slow_leaves_the_others_their_time(fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.05, size=997), unit_seconds=0.02)
    works = {"slow": machine.work(2.8), "a": machine.work(0.02), "b": machine.work(0.03)}
    result = compared(machine, works, seed=0, time_limit=3)
    assert len(result["slow"].turns) == 1
    assert result.ratio("b", "a").verdict is Verdict.FASTER
    assert result.ratio("slow", "a").verdict is Verdict.TOO_FEW
    assert result.ratio("slow", "a").estimate == pytest.approx(140, rel=0.1)
    assert machine.time < 3 * 2.8 + 3 + 0.3  # its first call, its warm-up and its turn, and the limit


def test_slow_work_alone_is_compared_as_far_as_the_time_goes(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    result = compared(machine, {"a": machine.work(2.0), "b": machine.work(2.0), "c": machine.work(2.0)}, seed=0)
    assert result.stopped is Stop.TIME_LIMIT
    assert {len(result[name].turns) for name in "abc"} == {result.rounds}


def test_turns_are_as_long_as_asked_for(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    works = {"a": machine.work(0.001), "b": machine.work(0.001)}
    assert compared(machine, works, seed=0)["a"].samples_per_turn == 5
    assert compared(machine, works, seed=0, turn_seconds=0.02)["a"].samples_per_turn == 20


# ---------------------------------------------------------------- what it returns


def test_it_returns_a_ratio_for_each_pair(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    candidates = {"slow": machine.work(0.004), "fast": machine.work(0.001), "same": machine.work(0.001)}
    result = compared(machine, candidates, seed=0)
    assert [(r.baseline, r.candidate) for r in result.ratios] == [("slow", "fast"), ("slow", "same"), ("fast", "same")]
    assert [r.verdict for r in result.ratios] == [Verdict.FASTER, Verdict.FASTER, Verdict.NO_DIFFERENCE]
    assert result.ratio("slow", "fast").estimate == pytest.approx(4, rel=1e-3)
    assert result.ratio("fast", "slow").estimate == pytest.approx(0.25, rel=1e-3)
    assert result.ratio("fast", "slow").verdict is Verdict.SLOWER
    assert result["fast"].median == pytest.approx(0.001, rel=1e-3)
    assert result.doubts == ()


def test_the_first_call_is_apart(fake, compared) -> None:
    machine, calls = fake.FakeMachine(read_cost=1e-7), itertools.count()
    result = compared(
        machine, {"a": lambda: machine.spend(60.0 if next(calls) == 0 else 0.001), "b": machine.work(0.001)}, seed=0
    )
    assert result["a"].first_call_seconds == pytest.approx(60)
    assert result.ratios[0].verdict is Verdict.NO_DIFFERENCE  # it does not count against the time limit either


def test_device_work_is_waited_for(fake) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    device = fake.FakeDevice(machine)
    result = compare(
        {"short": device.work(0.002), "long": device.work(0.004)},
        clock=machine.clock,
        synchronize=device.synchronize,
        seed=0,
    )
    assert result.ratio("short", "long").estimate == pytest.approx(0.5, rel=0.01)


def test_arguments_reach_every_candidate(fake) -> None:
    machine, seen = fake.FakeMachine(read_cost=1e-7), set()

    def candidate(name: str):
        def work(x: int, *, y: int) -> None:
            seen.add((name, x, y))
            machine.spend(0.01)

        return work

    compare(
        {name: candidate(name) for name in "ab"}, (1,), {"y": 2}, clock=machine.clock, synchronize=fake.nothing, seed=0
    )
    assert seen == {("a", 1, 2), ("b", 1, 2)}


def test_work_of_other_processes_is_compared_by_what_they_say(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)

    class Elsewhere:
        def __init__(self, seconds: float, cost_of_asking: float, resident: int) -> None:
            self.seconds, self.cost_of_asking, self.resident = seconds, cost_of_asking, resident

        def __call__(self) -> None:
            self.timed(1)

        def timed(self, calls: int) -> float:
            machine.spend(calls * self.seconds + self.cost_of_asking)
            return calls * self.seconds

        def memory(self) -> MemoryPeak:
            return MemoryPeak(resident=self.resident, resident_before=0, device=None, of_whole_process=False)

    works = {"fast": Elsewhere(1e-4, 0.003, 100), "slow": Elsewhere(2e-4, 0.0, 200), "here": machine.work(4e-4)}
    result = compared(machine, works, seed=0)
    assert result.ratio("slow", "fast").estimate == pytest.approx(2)
    assert result.ratio("here", "fast").estimate == pytest.approx(4, rel=1e-3)
    assert result.ratio("slow", "fast").verdict is Verdict.FASTER
    assert [result[name].memory.resident for name in ("fast", "slow")] == [100, 200]


def test_unknown_candidates_are_a_key_error(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    result = compared(machine, {"a": machine.work(0.01), "b": machine.work(0.01)}, seed=0)
    with pytest.raises(KeyError, match="no candidate 'c'; there are: a, b"):
        result["c"]
    with pytest.raises(KeyError, match="no pair 'a', 'a'"):
        result.ratio("a", "a")


def test_few_rounds_give_a_doubt_and_no_verdict(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    result = compared(machine, {"a": machine.work(1.0), "b": machine.work(2.0)}, seed=0, time_limit=12)
    assert result.rounds < FEWEST_ROUNDS
    assert result.stopped is Stop.TIME_LIMIT
    assert result.ratios[0].verdict is Verdict.TOO_FEW
    assert [doubt.name for doubt in result.doubts] == ["few_rounds"]


def test_progress_is_reported(fake, compared) -> None:
    machine = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.3, size=10_000))
    reports = []
    compared(machine, {"a": machine.work(0.01), "b": machine.work(0.01)}, seed=0, on_progress=reports.append)
    assert [r.samples for r in reports] == sorted({r.samples for r in reports})
    assert len(reports) > 3


# ---------------------------------------------------------------- when it stops


@given(seconds=st.floats(min_value=0.001, max_value=30.0), time_limit=st.floats(min_value=0.5, max_value=20.0))
def test_the_time_limit_is_kept_to_one_round(fake, seconds: float, time_limit: float) -> None:
    machine, log = fake.FakeMachine(read_cost=1e-7), []

    def work() -> None:
        log.append(machine.time)
        machine.spend(seconds)

    compare(
        {"a": work, "b": work},
        time_limit=time_limit,
        margin=1e-9,
        clock=machine.clock,
        synchronize=fake.nothing,
        seed=0,
    )
    # Two first calls, the limit, one round over it. Longer work has a warm-up call each, as in `measure`.
    round_seconds = 2 * (seconds + max(seconds, 0.006))
    assert machine.time <= 2 * seconds + max(time_limit, 2 * seconds) + round_seconds + 0.3


def test_it_stops_at_the_precision_and_at_the_most_rounds(fake, compared) -> None:
    machine = fake.FakeMachine(read_cost=1e-7)
    candidates = {"a": machine.work(0.001), "b": machine.work(0.001)}
    assert compared(machine, candidates, seed=0).stopped is Stop.PRECISION
    noisy = fake.FakeMachine(np.random.default_rng(0).lognormal(0, 0.5, size=9973))
    candidates = {"a": noisy.work(0.005), "b": noisy.work(0.005)}
    result = compared(noisy, candidates, seed=0, margin=1e-6, time_limit=1000)
    assert result.stopped is Stop.SAMPLE_LIMIT
    assert result.rounds <= comparing.MOST_ROUNDS


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("names", ["", "a"])
def test_one_candidate_is_no_comparison(names: str) -> None:
    with pytest.raises(ValueError, match="at least two candidates to compare"):
        compare(dict.fromkeys(names, lambda: None))


@pytest.mark.parametrize("limit", [{"margin": 0}, {"time_limit": -1}, {"min_rounds": 0}, {"margin": math.nan}])
def test_limits_must_be_positive(limit: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"expected {next(iter(limit))} above 0"):
        compare({"a": lambda: None, "b": lambda: None}, **limit)


def test_errors_of_a_candidate_come_through(fake, compared) -> None:
    machine, calls = fake.FakeMachine(read_cost=1e-7), itertools.count()

    def failing() -> None:
        machine.spend(0.06)
        if next(calls) == 15:
            raise ZeroDivisionError("the work failed")

    with pytest.raises(ZeroDivisionError, match="the work failed"):
        compared(machine, {"a": machine.work(0.06), "b": failing}, seed=0)
