"""How trials stand: what they cost, and which may be the best."""

import pytest

from tfperf.engines.plan import Plan
from tfperf.search.standings import FINALISTS, MOST_CONTENDERS, NEAR, RIVAL, Standings
from tfperf.trials.trial import Status


@pytest.fixture
def standings(asked):
    """A function that notes trials of a question; users have `eager` and `graph`."""

    def standings(*trials, **fields):
        made = Standings(asked(**fields), (Plan(engine="eager"), Plan(engine="graph")))
        for trial in trials:
            made.note(trial)
        return made

    return standings


def test_what_is_near_the_best_look_contends(standings, tried):
    near, far, failed = tried("onnx", NEAR * 0.99e-3), tried("graph", NEAR * 1.01e-3), tried("xla", status=Status.WRONG)
    best = tried("litert", 1e-3)
    found = standings(far, near, failed, best)
    assert found.contenders() == [best.name, near.name]
    assert found.is_far(far.name, best.name)
    assert not found.is_far(near.name, best.name)
    assert standings().contenders() == standings(failed).contenders() == []


def test_so_many_contend_at_most(standings, tried):
    alike = [tried(Plan(engine="litert", threads=threads), 1e-3 + threads * 1e-6) for threads in range(1, 12)]
    assert standings(*alike).contenders() == [trial.name for trial in alike[:MOST_CONTENDERS]]
    assert len(standings(*alike, objectives=("size",)).contenders()) == FINALISTS


def test_with_several_objectives_the_front_contends(standings, tried):
    fast, small, neither = tried("litert", 1e-3, size=900), tried("onnx", 9e-3, size=100), tried("xla", 9e-3, size=900)
    found = standings(neither, small, fast, objectives=("latency", "size"))
    assert set(found.front()) == {fast.name, small.name}
    assert found.contenders() == [fast.name, small.name]
    assert standings(fast, small).front() == ()


def test_a_round_in_turns_is_believed_before_the_look(standings, tried, compared):
    lucky, other = tried("onnx", 1.0e-3), tried("litert", 1.2e-3)
    found = standings(lucky, other)
    assert found.contenders() == [lucky.name, other.name]
    found.note_round(compared({lucky.name: 1.5e-3, other.name: 1.2e-3}))
    assert found.contenders() == [other.name, lucky.name]
    assert found.cost_of(lucky.plan) == pytest.approx(1.5e-3, rel=0.01)


def test_a_trial_that_came_out_otherwise_costs_what_it_does_now(standings, tried):
    trial = tried("onnx", 1e-3)
    found = standings(trial)
    assert found.cost_of(trial.plan) == pytest.approx(1e-3)
    found.note(tried("onnx", 2e-3))
    assert found.cost_of(trial.plan) == pytest.approx(2e-3)
    found.note(tried("onnx", status=Status.CRASHED))
    assert found.cost_of(trial.plan) == float("inf")
    assert found.cost_of(Plan(engine="litert")) == float("inf")


def test_what_exceeds_the_limit_costs_more_than_anything_yet_users_have_it(standings, tried):
    slow, kept = tried("graph", 3e-3), tried("litert", 1e-3)
    found = standings(slow, kept, latency_limit=2e-3)
    assert found.cost(slow.name) == float("inf")
    assert found.by_cost(found.trials) == found.contenders() == [kept.name]
    assert found.best_of_defaults([kept.name]) == found.defaults() == [slow.name]
    assert found.best_of_defaults([slow.name]) == []


def test_of_what_users_have_each_is_taken_at_its_best_batch(standings, tried):
    graph = [tried("graph", seconds, batch=batch) for batch, seconds in ((1, 1e-3), (8, 2e-3), (64, 40e-3))]
    eager, failed = tried("eager", 4e-3), tried("predict", status=Status.REFUSED)
    found = standings(*graph, eager, failed, objectives=("throughput",), batches=(1, 8, 64))
    assert found.batch_of(Plan(engine="graph")) == 8
    assert found.best_of_defaults([]) == [graph[1].name, eager.name]


@pytest.mark.parametrize(
    ("seconds", "limit", "why"),
    [
        ((1e-3, 1e-3, 1e-3), None, None),
        ((1e-3, 3e-3, 6e-3), None, "fewer examples a second from batch 1 on"),
        ((1e-3, 3e-3, 3.5e-3), None, None),  # the last was better again
        ((1e-3, 1e-3, 6e-3), 5e-3, "batch 4 takes longer than the limit already"),
        ((), None, None),
    ],
)
def test_larger_batches_are_tried_while_they_may_be_better(standings, tried, seconds, limit, why):
    trials = [tried("onnx", one, batch=2**place) for place, one in enumerate(seconds)]
    found = standings(*trials, objectives=("throughput",), batches=(1, 2, 4, 8), latency_limit=limit)
    assert found.too_late(Plan(engine="onnx"), [trial.batch for trial in trials]) == why


def test_what_does_not_run_is_not_tried_with_larger_batches(standings, tried):
    found = standings(tried("onnx", status=Status.CRASHED))
    assert found.too_late(Plan(engine="onnx"), [1]) == "it does not run with batch 1"


def test_who_was_near_the_winner_of_the_final_is_a_rival(standings, tried, compared):
    winner, near, far = tried("litert", 1e-3), tried("onnx", 1.1e-3), tried("xla", 1.2e-3)
    in_final = {winner.name: 1e-3, near.name: (RIVAL - 0.03) * 1e-3, far.name: (RIVAL + 0.03) * 1e-3}

    def rivals(**question):
        found = standings(winner, near, far, **question)
        found.final = compared(in_final)
        return [one.name for one in (winner, near, far) if found.is_rival(one.name, winner.name)]

    assert rivals() == [winner.name, near.name]
    assert rivals(objectives=("size",)) == [winner.name, near.name, far.name]  # a size is no matter of luck
    assert standings(winner, far).is_rival(far.name, winner.name)  # there was no final
