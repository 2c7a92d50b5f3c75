"""Searches among engines whose answers, speed and faults are known, each in processes of its own."""

import time

import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.measure.sampling import Sampler
from tfperf.search import ranking, strategy
from tfperf.search.journal import Journal
from tfperf.search.ranking import winner_of
from tfperf.search.searching import Labels, Search
from tfperf.search.space import Space
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, store_arrays
from tfperf.trials.side_by_side import Examples, checked_trial, measure_in_turns
from tfperf.trials.trial import Status, Trial, TrialError


class Heard:
    """A watcher that remembers, and may do something when a trial is finished."""

    def __init__(self, act=lambda trial: None):
        self.phases, self.names, self.bests, self.act = [], [], [], act

    def phase(self, words):
        self.phases.append(words)

    def looked(self, trial, best, left):
        assert left >= 0
        self.names.append(trial.name)
        self.bests.append(best.name if best else None)
        self.act(trial)

    def measuring(self, progress):
        assert progress.time_limit > 0


def decided(monkeypatch, **values):
    """Have thresholds of the strategy other values."""
    for name, value in values.items():
        monkeypatch.setattr(strategy, name, strategy.THRESHOLDS[name]._replace(value=value))


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Short measurements."""
    decided(monkeypatch, LOOK_SECONDS=0.1, ROUND_SECONDS=0.05, FINAL_SECONDS=0.6)


@pytest.fixture
def search(dense, planted, asked, tmp_path):
    """A function that searches among planted engines, in processes that start as long as the test lasts.

    What users have is not looked at unless named: it starts TensorFlow, twice.
    """
    servable, origin, cache = dense
    assert planted.nothing_left()

    def search(*engines, defaults=(), watcher=None, labels=None, given=None, **fields):
        fields = {"engines": engines, "trial_seconds": 60.0} | fields
        limits = {"deadline": fields["trial_seconds"], "memory_limit": fields.get("memory_limit", 2**30)}
        scratch = tmp_path / f"scratch{len(list(tmp_path.iterdir()))}"
        scratch.mkdir()
        with Launcher(servable, origin, scratch, cache=cache, **limits) as launcher:
            found = Search(
                servable,
                asked(**fields),
                Space(asked(**fields), (), defaults=defaults),
                launcher,
                Journal(tmp_path / "journal" / "-".join(map(str, fields.values())), Trial),
                scratch,
                watcher or Heard(),
                labels=labels,
                given=given,
                command=lambda plan, batch: f"run {plan} at {batch}",
            )
            search.last = found
            found.run()
        return found

    return search


def statuses(found):
    return {trial.plan.engine: trial.status for trial in found.trials}


def test_a_fast_wrong_one_never_wins_nor_does_a_light_one(search, planted):
    heard = Heard()
    found = search("honest", "equal", "light", "wrong", "memory_of_one", watcher=heard).found
    ran = dict.fromkeys(("honest", "equal", "light"), Status.RAN)
    assert statuses(found) == ran | {"wrong": Status.WRONG, "memory_of_one": Status.WRONG}
    alike = {"honest, 1 thread, batch 1", "equal, 1 thread, batch 1"}
    assert {found.winner, *found.equals} <= alike  # a busy minute may tell the two apart
    assert found.front == found.defaults == ()
    (wrong,) = (trial for trial in found.trials if trial.plan.engine == "wrong")
    assert wrong.reason.startswith("wrong answers: wrong, 1 thread DISAGREES: relative error 0.01")
    assert wrong.measurement is None
    assert [trial.command for trial in found.trials if trial.plan.engine == "light"] == ["run light, 1 thread at 1"]
    assert not any(best and ("wrong" in best or "memory" in best) for best in heard.bests)
    assert sorted(heard.names) == sorted(trial.name for trial in found.trials)
    names = {measurement.name for measurement in found.final.measurements}
    assert names == {measurement.name for measurement in found.confirmation.measurements}
    assert "light, 1 thread, batch 1" not in names
    assert heard.phases[-2:] == ["final: measuring 2 in turns", "confirmation: measuring 2 in turns"]
    assert planted.nothing_left()


FAULTY = {
    "hang_in_build": Status.TIMED_OUT,
    "hang_in_call": Status.TIMED_OUT,
    "segfault": Status.CRASHED,
    "exits": Status.CRASHED,
    "stops_itself": Status.CRASHED,
    "hog": Status.OUT_OF_MEMORY,
    "nan": Status.WRONG,
    "raises": Status.REFUSED,
    "no_module": Status.REFUSED,
    "odd_proof": Status.REFUSED,
    "forker": Status.RAN,
    "flood": Status.RAN,
}
DEADLINE = 20.0


def test_whatever_others_do_the_same_one_wins_and_no_process_is_left(search, planted):
    planted.set(bytes=2**22)
    began = time.monotonic()
    found = search("honest", *FAULTY, trial_seconds=DEADLINE, memory_limit=2**29).found
    assert time.monotonic() - began < DEADLINE * (2 + len(FAULTY))  # each starts, loads and is checked: mostly at once
    told = statuses(found)
    assert told.pop("honest") is Status.RAN
    assert {name: told[name] for name in FAULTY if told[name] is not FAULTY[name]} == {}
    assert found.winner in {f"{name}, 1 thread, batch 1" for name in ("honest", "forker", "flood")}
    assert all(trial.reason.isprintable() and trial.reason for trial in found.trials if trial.status is not Status.RAN)
    assert planted.nothing_left()


def test_one_that_is_three_percent_slower_hardly_ever_wins_a_final(dense, planted, asked, tmp_path):
    """Twenty finals of processes that are kept; each has several turns, of which a busy machine leaves some alone.

    A machine that is busy all through one final makes its winner a matter of chance; by chance alone, the slower one
    would win seven. Where it was busy through several, there are twenty more.
    """
    servable, origin, cache = dense
    with Launcher(servable, origin, tmp_path, cache=cache) as launcher:
        examples, runs = Examples.store(tmp_path, servable, 1), []
        for name in ("honest", "equal", "slower"):
            process, loaded = launcher.start(Plan(engine=name, threads=1))
            runs.append((checked_trial(process, loaded, examples), process.work(1)))

        def winner():
            trials, comparison = measure_in_turns(runs, 2.0)
            return winner_of({trial.name: trial for trial in trials}, asked(), comparison, None)[0]

        twenties = ([winner() for _ in range(20)] for _ in range(2))
        assert any(wins.count("slower, 1 thread, batch 1") <= 2 for wins in twenties)


def test_a_search_that_was_stopped_goes_on_where_it_was(search, planted, tmp_path):
    """Ctrl-C comes when two trials are finished and others run, some of which may finish, too."""
    engines = ("honest", "equal", "light", "wrong", "segfault", "reads")
    finished = []

    def stop(trial):
        finished.append(trial.name)
        if len(finished) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(*engines, watcher=Heard(stop))
    assert planted.nothing_left()
    assert 2 <= len(finished) < len(engines)
    left = [trial for trial in search.last.found.trials if trial.name not in finished]
    assert len(left) == len(engines) - len(finished)
    assert {(trial.status, trial.reason) for trial in left} == {(Status.NOT_TRIED, "the search was interrupted")}
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "journal").rglob("*.json")}
    assert len(kept) == len(finished)
    heard = Heard()
    found = search(*engines, watcher=heard).found
    assert sorted([*finished, *heard.names]) == sorted(trial.name for trial in found.trials)
    assert found.winner in {f"{name}, 1 thread, batch 1" for name in ("honest", "equal", "reads")}
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    again = Heard()
    known = search(*engines, watcher=again).found  # all of it, the rounds too
    assert {trial.name: trial for trial in known.trials} == {trial.name: trial for trial in found.trials}
    assert known._replace(trials=()) == found._replace(trials=())
    assert again.names == []
    assert not any("turns" in phase for phase in again.phases)


def test_time_that_is_up_ends_the_looks_and_the_best_so_far_are_measured(search, planted):
    def wait(trial):
        time.sleep(1.1)

    engines = ("honest", "equal", "slower", "light", "forker", "reads")
    stopped = search(*engines, watcher=Heard(wait), time_limit=1.0)
    found = stopped.found
    assert stopped.ran_out_of_time
    ran = [trial for trial in found.trials if trial.status is Status.RAN]
    assert 0 < len(ran) <= strategy.STARTERS.number
    assert found.winner in {trial.name for trial in ran}
    left = [trial for trial in found.trials if trial.status is not Status.RAN]
    assert len(ran) + len(left) == len(engines)
    assert {(trial.status, trial.reason) for trial in left} == {(Status.NOT_TRIED, "the time was up")}


def test_time_that_is_up_when_nothing_is_left_to_try_was_enough(search, planted):
    """Both are begun at once, and the time is up before either is finished."""

    def wait(trial):
        time.sleep(0.6)

    finished = search("honest", "equal", watcher=Heard(wait), time_limit=0.5)
    assert statuses(finished.found) == dict.fromkeys(("honest", "equal"), Status.RAN)
    assert not finished.ran_out_of_time


def test_a_finalist_that_dies_later_is_out_and_the_next_wins(search, planted, monkeypatch):
    """It runs when it is looked at, and in the final, and ends itself when it is measured again."""
    monkeypatch.setattr(ranking, "RIVAL", strategy.RIVAL._replace(value=10.0))  # however busy the final is

    class Changes(Heard):
        def phase(self, words):
            planted.set(calls=20 if words.startswith("confirmation") else 10**9)

    heard = Changes()
    found = search("honest", "exits", watcher=heard, trial_seconds=30.0).found
    assert heard.names
    assert found.winner == "honest, 1 thread, batch 1"
    (trial,) = (trial for trial in found.trials if trial.plan.engine == "exits")
    assert trial.status is Status.CRASHED
    assert trial.reason.startswith("exits, 1 thread: its process ended with exit code 7")
    assert trial.command == "run exits, 1 thread at 1"
    assert trial.name not in found.equals


def test_a_pause_in_a_look_makes_no_plan_hopeless(search, planted, monkeypatch):
    """The first sample of the faster one takes up all the time of its look."""
    decided(monkeypatch, LOOK_SECONDS=1.0)
    sample, pauses = Sampler.sample, []

    def paused_once(sampler):
        if sampler.name.startswith("honest") and not pauses:
            pauses.append(sampler.name)
            time.sleep(1.0)
            return 1.0
        return sample(sampler)

    monkeypatch.setattr(Sampler, "sample", paused_once)
    found = search("honest", "light").found
    assert pauses == [found.winner] == ["honest, 1 thread, batch 1"]


def test_many_that_are_alike_are_halved(search, planted, monkeypatch):
    decided(monkeypatch, FINALISTS=2)
    heard = Heard()
    engines = ("honest", "equal", "forker", "flood", "reads")
    found = search(*engines, watcher=heard).found
    assert heard.phases[-3:] == [
        "round: measuring 5 in turns",
        "final: measuring 2 in turns",
        "confirmation: measuring 2 in turns",
    ]
    assert len(found.final.measurements) == 2
    assert planted.nothing_left()


def test_throughput_is_best_with_the_most_rows_a_call(search, planted):
    found = search("honest", "light", objectives=("throughput",), batches=(1, 4, 16)).found
    assert found.winner == "honest, 1 thread, batch 16"
    best = {trial.name: trial for trial in found.trials}[found.winner]
    assert 4 / 0.0002 < best.examples_per_second <= 16 / 0.0002  # a call takes no less, whatever the batch
    assert {trial.batch for trial in found.trials if trial.plan.engine == "light"} == {1, 4, 16}


def test_a_larger_batch_is_not_tried_beyond_the_limit(search, planted):
    """A call of light takes 1 ms."""
    found = search("honest", "light", objectives=("throughput",), batches=(1, 4), latency_limit=0.0008).found
    (late,) = (trial for trial in found.trials if trial.name == "light, 1 thread, batch 4")
    assert (late.status, late.reason) == (Status.NOT_TRIED, "batch 1 takes longer than the limit already")
    assert found.winner == "honest, 1 thread, batch 4"


def test_the_smallest_wins_where_size_counts_unless_it_is_too_slow(search, planted):
    assert search("honest", "light", objectives=("size",)).found.winner == "light, 1 thread, batch 1"
    limited = search("honest", "light", objectives=("size",), latency_limit=0.0008).found
    assert limited.winner == "honest, 1 thread, batch 1"
    assert search("light", latency_limit=0.0008).found.winner is None


def test_several_objectives_give_a_front(search, planted):
    found = search("honest", "light", "wrong", objectives=("latency", "size")).found
    assert found.winner == "honest, 1 thread, batch 1"
    assert set(found.front) == {"honest, 1 thread, batch 1", "light, 1 thread, batch 1"}


def test_what_users_have_is_measured_beside_the_winner_whatever_the_limits_are(search, planted):
    found = search("honest", defaults=("slower", "light"), objectives=("size", "latency"), latency_limit=0.0008).found
    assert set(found.defaults) == {"slower, batch 1", "light, batch 1"}
    in_final, in_confirmation = (
        {one.name for one in stage.measurements} for stage in (found.final, found.confirmation)
    )
    assert in_final >= {*found.defaults, found.winner}
    assert found.winner in in_confirmation
    assert in_confirmation & set(found.defaults)  # the best of what users have
    assert found.winner != "light, batch 1"


@pytest.mark.parametrize(("default", "starts"), [("light", 1), ("slower", 2)])
def test_a_default_that_is_no_rival_keeps_its_process_until_the_winner_is_confirmed(
    search, planted, monkeypatch, default, starts
):
    """A call of light takes five times as long as one of honest, one of slower three percent more."""
    decided(monkeypatch, FINAL_SECONDS=3.0)  # which tells five times from one, whatever else runs
    started = []
    start = Launcher.start

    def remembered(launcher, plan):
        started.append(plan.engine)
        return start(launcher, plan)

    monkeypatch.setattr(Launcher, "start", remembered)
    found = search("honest", defaults=(default,), memory_limit=2**32).found
    assert {one.name for one in found.confirmation.measurements} == {"honest, 1 thread, batch 1", f"{default}, batch 1"}
    assert (started.count("honest"), started.count(default)) == (2, starts)
    assert planted.nothing_left()


@pytest.mark.parametrize(("drop", "status"), [(0.05, Status.WRONG), (0.2, Status.RAN)])
def test_labels_decide_in_place_of_the_tolerance(dense, search, planted, tmp_path, drop, status):
    """`exchanged` takes the second for the first in a tenth of the rows."""
    (rows,) = dense[0].signature.random_inputs(100, seed=5)
    rows[:, 0] = np.where(np.arange(100) % 10 == 0, 1.0, np.minimum(rows[:, 0], 0.5))
    labels = dense[0].reference([rows])[0].argmax(axis=1)
    given = [rows[1:9]]  # of those that are right
    stored = store_arrays(tmp_path / "rows.npz", [rows]), store_arrays(tmp_path / "labels.npz", [labels])
    found = search("light", "exchanged", given=given, accuracy_drop=drop, labels=Labels(*stored, least=1 - drop)).found
    assert statuses(found) == {"light": Status.RAN, "exchanged": status}
    (trial,) = (trial for trial in found.trials if trial.plan.engine == "exchanged")
    if status is Status.RAN:
        assert trial.accuracy == pytest.approx(0.9)
        assert found.winner == "exchanged, 1 thread, batch 1"
    else:
        assert trial.reason == "finds 90.00% of the labels, 95.00% was asked for"
        assert found.winner == "light, 1 thread, batch 1"


def interrupt(trial):
    """Ctrl-C comes when a trial is finished."""
    raise KeyboardInterrupt


def test_a_plan_that_was_stopped_between_its_batch_sizes_goes_on_with_the_next(dense, search, planted, tmp_path):
    """What was found of the first, its accuracy too, stays."""
    (rows,) = dense[0].signature.random_inputs(20, seed=5)
    labels = dense[0].reference([rows])[0].argmax(axis=1)
    stored = store_arrays(tmp_path / "rows.npz", [rows]), store_arrays(tmp_path / "labels.npz", [labels])
    asked = {"batches": (1, 4), "accuracy_drop": 0.1, "labels": Labels(*stored, least=0.9)}
    stopped = Heard(interrupt)
    with pytest.raises(KeyboardInterrupt):
        search("honest", watcher=stopped, **asked)
    assert stopped.names == ["honest, 1 thread, batch 1"]
    (kept,) = (tmp_path / "journal").rglob("trial-*.json")
    before = kept.read_bytes()
    heard = Heard()
    found = search("honest", watcher=heard, **asked).found
    assert heard.names == ["honest, 1 thread, batch 4"]
    assert {trial.name: trial.accuracy for trial in found.trials} == dict.fromkeys([*stopped.names, *heard.names], 1.0)
    assert kept.read_bytes() == before


def test_what_was_seen_of_a_smaller_batch_before_a_stop_still_ends_a_plan(search, planted):
    """A call of light takes 1 ms."""
    asked = {"objectives": ("throughput",), "batches": (1, 4), "latency_limit": 0.0008}
    with pytest.raises(KeyboardInterrupt):
        search("light", watcher=Heard(interrupt), **asked)
    heard = Heard()
    found = search("light", watcher=heard, **asked).found
    assert heard.names == ["light, 1 thread, batch 4"]
    (late,) = (trial for trial in found.trials if trial.name in heard.names)
    assert (late.status, late.reason) == (Status.NOT_TRIED, "batch 1 takes longer than the limit already")


def test_what_failed_for_the_moment_is_tried_again_as_is_what_follows_from_it(search, planted, monkeypatch):
    """Memory runs out when the first batch size is checked for the first time."""
    check, checked = EngineProcess.check, []

    def short_of_memory(process, batch, *arguments, **options):
        checked.append(batch)
        if len(checked) == 1:
            raise TrialError(Status.OUT_OF_MEMORY, "MemoryError: bad allocation")
        return check(process, batch, *arguments, **options)

    monkeypatch.setattr(EngineProcess, "check", short_of_memory)
    asked = {"objectives": ("throughput",), "batches": (1, 4)}
    first = search("honest", **asked).found
    assert [trial.status for trial in first.trials] == [Status.OUT_OF_MEMORY, Status.NOT_TRIED]
    heard = Heard()
    second = search("honest", watcher=heard, **asked).found
    assert heard.names == [trial.name for trial in first.trials]
    assert {trial.status for trial in second.trials} == {Status.RAN}
