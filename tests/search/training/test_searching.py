"""The search for a training plan: what is chosen, what never is, and that it goes on where it was stopped."""

import contextlib

import pytest

from tests.fixtures.training import BAD_CHANGES, BAD_LOOPS, BRIEF, Told, seconds_of, start_here
from tfperf.search.journal import Journal
from tfperf.search.training import strategy
from tfperf.search.training.searching import TrainingQuestion, TrainingSearch
from tfperf.search.training.strategy import TrainingSpace
from tfperf.training.plan import CHANGES, TrainingPlan
from tfperf.trials.training.courses import Course
from tfperf.trials.training.trial import TrainingTrial
from tfperf.trials.trial import Status, TrialError

pytestmark = pytest.mark.usefixtures("brief_training")


class Quiet:
    """A listener that keeps the names of trials, and presses Ctrl-C when so many are finished."""

    def __init__(self, after=None):
        self.names, self.after = [], after

    def phase(self, words):
        pass

    def measuring(self, progress):
        pass

    def looked(self, trial, best):
        self.names.append(trial.name)
        if len(self.names) == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def searching(task, tmp_path):
    """A function that makes a search among changes, with what ends it."""
    with contextlib.ExitStack() as stack:

        def searching(changes=("fast_optimizer",), start=start_here, listener=None, **question):
            asked = TrainingQuestion(changes=tuple(changes), memory_limit=2**40, **question)
            journal = Journal(tmp_path / "journal", TrainingTrial)
            return TrainingSearch(asked, *task, start, journal, listener or Quiet(), stack)

        yield searching


@pytest.fixture
def no_variables(monkeypatch):
    """Search among changes and loops alone: variables of the environment mean nothing in this process."""
    monkeypatch.setattr("tfperf.search.training.strategy.VARIABLES", {})


@pytest.mark.usefixtures("no_variables")
def test_it_finds_a_plan_that_learns(searching):
    search = searching(time_limit=1e-9)
    search.run()
    winner, _ = search.winner()
    best = search.trials[winner]
    assert best.status is Status.RAN
    assert best.course is not None
    assert {trial.status for trial in search.trials.values()} <= {Status.RAN, Status.NOT_TRIED}, search.trials
    assert len(search.references[search.default]) == BRIEF["SEEDS"]


@pytest.mark.usefixtures("no_variables")
def test_what_does_not_learn_is_never_chosen(searching, bad_plans, monkeypatch):
    monkeypatch.setattr("tfperf.search.training.strategy.HOPELESS", 1e9)  # else the slow ones are not looked at
    search = searching(("fast_optimizer", *BAD_CHANGES))
    search._reference(None)
    for plan in bad_plans:
        trial = search._look(plan)
        assert trial.status in (Status.WRONG, Status.REFUSED), f"{plan}: {trial}"
    chosen = search.trials[search.winner()[0]].plan
    assert not {*chosen.changes} & {*BAD_CHANGES}
    assert chosen.loop not in BAD_LOOPS
    reasons = {plan: search.trials[str(plan)].reason for plan in bad_plans}
    assert "not finite" in reasons[TrainingPlan(changes=("not_finite",))]
    assert "another order" in reasons[TrainingPlan(loop="unshuffled")]
    assert "each example once" in reasons[TrainingPlan(loop="half")]


class Spread(Told):
    """A process whose loss depends on the seed; that of a plan which changes something lies beside the first seeds'."""

    asked, loss = None, 1.0

    def course(self, seed, segments, steps):
        """The loss of seeds that agree by chance, and of further ones that do not."""
        self.asked.append((str(self.plan), seed))
        loss = self.loss if self.plan.changes else {0: 1.0, 1: 1.01}.get(seed, 1.2)
        return Course(losses=(loss,) * segments, moved={"kernel": 1.0})


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(("loss", "status"), [(1.01, Status.RAN), (1.1, Status.RAN), (3.0, Status.WRONG)])
def test_more_seeds_tell_whether_a_plan_is_refused_by_chance(searching, monkeypatch, loss, status):
    asked = []
    monkeypatch.setattr(Spread, "asked", asked)
    monkeypatch.setattr(Spread, "loss", loss)
    default, plan = TrainingPlan(), TrainingPlan(changes=("fast_optimizer",))
    search = searching(start=lambda plan: Spread(plan, seconds_of))
    search._reference(None)
    assert search._look(plan).status is status
    seeds = BRIEF["SEEDS"] + (strategy.MORE_SEEDS if loss > 1.01 else 0)
    assert sorted(asked) == sorted([*((str(default), seed) for seed in range(seeds)), (str(plan), 0)])
    assert len(search.references[str(default)]) == len(search.first_reference.courses) == seeds
    again = searching(start=lambda plan: Spread(plan, seconds_of))
    assert again._reference(None) == search.first_reference


@pytest.mark.usefixtures("no_variables")
def test_a_reference_that_is_gone_when_it_gets_more_seeds_leaves_the_plan_refused(searching, monkeypatch):
    monkeypatch.setattr(Spread, "asked", [])
    monkeypatch.setattr(Spread, "loss", 1.1)
    failing = []
    search = searching(start=lambda plan: Spread(plan, seconds_of, failing))
    search._reference(None)
    failing.append(TrainingPlan())
    search._processes[str(TrainingPlan())].close()
    assert search._look(TrainingPlan(changes=("fast_optimizer",))).status is Status.WRONG


@pytest.mark.usefixtures("no_variables")
def test_it_goes_on_where_it_was_stopped(searching):
    first, started = Quiet(after=3), []

    def start(plan):
        started.append(str(plan))
        return Told(plan, seconds_of)

    with pytest.raises(KeyboardInterrupt):
        searching(start=start, listener=first).run()
    started.clear()
    search = searching(start=start)
    search.run()
    looked = [name for name in search.trials if name not in first.names]
    finalists = {one.name for one in search.final.measurements}
    assert set(started) == {*looked, *(finalists & {*first.names})}
    assert set(first.names) <= set(search.trials)


def test_the_fastest_of_all_is_found_in_few_looks(searching):
    search = searching(tuple(CHANGES), lambda plan: Told(plan, seconds_of), threads=(1,))
    search.run()
    winner, equals = search.winner()
    best = search.trials[winner].plan
    assert (best.changes, best.loop, best.threads) == (("mixed_bfloat16", "fuse", "fast_optimizer"), "compiled", 1)
    assert len(search.trials) <= 16  # of 192
    assert "its loss was not checked" in search.trials[f"{', '.join(_names(best, 'XLA'))}"].reason
    assert winner not in equals


def _names(plan, words):
    """The settings of the plan that was the best before one thread was tried, with one more."""
    settings = list(plan.model_copy(update={"threads": None}).settings)
    return [*settings[:3], words, *settings[3:]]


def test_what_fails_is_a_row_and_the_search_goes_on(searching):
    failing = TrainingPlan(changes=("fuse", "fast_optimizer"), loop="compiled")
    search = searching(tuple(CHANGES), lambda plan: Told(plan, seconds_of, [failing]), threads=(1,))
    search.run()
    assert search.trials[str(failing)].status is Status.CRASHED
    assert search.trials[search.winner()[0]].status is Status.RAN


def test_what_the_model_does_not_allow_is_left_out_and_told(searching):
    why_not = {"fuse": "no layer has a faster form", "jit_compile": "not asked for"}
    search = searching(("fuse", "fast_optimizer"), lambda plan: Told(plan, seconds_of, why_not=why_not))
    search.run()
    assert search.left_out == {"fuse": "no layer has a faster form"}
    assert not [name for name in search.trials if "fused layers" in name]


def test_batch_sizes_are_searched_with_a_reference_each(searching):
    def start(plan):
        return Told(plan, lambda plan: 0.2 if plan.batch_size == 32 else 0.1)

    search = searching((), start, batch_sizes=(32, 256))
    search.run()
    assert search.trials[search.winner()[0]].plan.batch_size == 256
    assert set(search.references) == {str(TrainingPlan(batch_size=size)) for size in (32, 256)}


def test_the_default_of_a_further_batch_size_is_looked_at_once_and_its_processes_end(searching, no_variables):
    started, listener = [], Quiet()

    def start(plan):
        is_default = plan == TrainingPlan(batch_size=plan.batch_size)
        started.append(Told(plan, lambda plan: 0.1 if is_default else 0.11))
        return started[-1]

    search = searching(("fast_optimizer",), start, listener=listener, batch_sizes=(32, 64))
    search.run()
    further = TrainingPlan(batch_size=64)
    assert listener.names.count(str(further)) == 1
    assert [process.plan for process in started].count(further) == 1
    search._end_all()
    assert [str(process.plan) for process in started if process.alive] == []


def test_each_batch_size_is_timed_on_whole_batches(searching):
    search = searching((), lambda plan: Told(plan, lambda plan: 0.2), batch_sizes=(32, 64, 128, 256))
    search.run()
    assert search.first_reference.examples % 256 == 0
    assert search.first_reference.examples >= 3 * 256


def test_sizes_that_have_no_multiple_in_reach_are_timed_all_the_same(searching):
    search = searching((), lambda plan: Told(plan, lambda plan: 10.0), batch_sizes=(31, 37, 41))
    search.run()
    assert search.first_reference.examples == BRIEF["FEWEST_STEPS"] * 32


def test_a_batch_size_that_cannot_train_is_a_row_and_the_search_goes_on(searching):
    cannot, started = TrainingPlan(batch_size=256), []

    def start(plan):
        started.append(plan)
        return Told(plan, lambda plan: 0.2, [cannot])

    search = searching(("fast_optimizer",), start, batch_sizes=(32, 256))
    search.run()
    assert search.trials[str(cannot)].status is Status.CRASHED
    assert search.trials[search.winner()[0]].plan.batch_size == 32
    assert set(search.references) == {str(TrainingPlan(batch_size=32))}
    assert [plan for plan in started if plan.batch_size == 256] == [cannot]
    assert {one.status for one in search.trials.values() if one.plan.batch_size == 256} == {Status.CRASHED}


class DiesAtRest(Told):
    """A process that is killed while others are looked at, and cannot be started again."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rest = self.die

    def die(self):
        self.failing.append(self.plan)
        self.close()


class DiesInItsTurn(Told):
    """A process that is killed when its turn in the final begins: at the third step, after its look and its waking."""

    def __init__(self, *args):
        super().__init__(*args)
        self.steps, self.step = 0, self.die

    def die(self):
        self.steps += 1
        if self.steps == 3:
            self.failing.append(self.plan)
            raise TrialError(Status.CRASHED, "its process was killed")


@pytest.mark.parametrize("dying", [DiesAtRest, DiesInItsTurn])
def test_who_fails_in_the_final_is_left_out_and_no_other(searching, dying):
    best, failing = TrainingPlan(changes=("fast_optimizer",), loop="compiled"), []

    def start(plan):
        if plan == best and not failing:
            return dying(plan, seconds_of, failing)
        return Told(plan, seconds_of, failing)

    search = searching(("fast_optimizer",), start)
    search.run()
    assert search.trials[str(best)].status is Status.CRASHED
    assert {one.name for one in search.final.measurements} > {search.default}
    others = [one for one in search.trials.values() if one.plan != best]
    assert {one.status for one in others} == {Status.RAN}


def test_time_that_is_up_means_nothing_where_nothing_is_left(searching):
    search = searching(("fast_optimizer",), lambda plan: Told(plan, seconds_of))
    search.run()
    search._question = search._question.model_copy(update={"time_limit": 1e-9})
    space = TrainingSpace(("fast_optimizer",), {}, (None,), (None,), True, 1)
    assert search._next(space, search._base(None)) is None
    assert not search.ran_out_of_time


def test_when_the_time_is_up_the_best_so_far_take_turns(searching):
    search = searching(tuple(CHANGES), lambda plan: Told(plan, seconds_of), time_limit=1e-9)
    search.run()
    assert search.ran_out_of_time
    assert search.final is not None
    assert len(search.trials) == 3


def test_a_space_of_its_own_is_what_the_model_allows():
    assert TrainingSpace((), {}, (None,), (None,), False, 1).default(None) == TrainingPlan()
