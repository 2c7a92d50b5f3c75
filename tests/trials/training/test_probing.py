"""What is seen of a loop from within."""

import keras
import numpy as np
import pytest

from tfperf.training.plan import LOOPS, TrainingLoop, TrainingPlan
from tfperf.trials.training.probing import Stopwatch, seen_orders


@pytest.mark.parametrize(
    "plan", [TrainingPlan(), TrainingPlan(steps_per_execution=2), TrainingPlan(loop="compiled")], ids=str
)
def test_a_loop_trains_on_each_example_once_an_epoch(plan):
    orders = seen_orders(plan, 14, 4, 3)
    assert [sorted(order) for order in orders] == [list(range(14))] * 3


def test_examples_in_the_order_given_are_seen(monkeypatch):
    unshuffled = lambda model, data, **options: model.fit(*data, **options | {"shuffle": False})  # noqa: E731
    monkeypatch.setitem(LOOPS, "unshuffled", TrainingLoop("unshuffled", unshuffled))
    assert seen_orders(TrainingPlan(loop="unshuffled"), 14, 4, 2) == [list(range(14))] * 2


def trained_of(examples):
    """The examples at the ends of steps of 4."""
    return [min(first + 4, examples) for first in range(0, examples, 4)]


def watch_of(monkeypatch, *ends, examples=1000):
    """A stopwatch that saw so many steps of 4 examples at such times."""
    watch, times = Stopwatch(trained_of(examples)), iter([0.0, *(time for _, time in ends)])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch.on_epoch_begin(0)
    for steps, _ in ends:
        watch.on_train_batch_end(steps - 1)
    return watch


def test_the_first_call_is_counted_as_the_others(monkeypatch):
    assert watch_of(monkeypatch, (1, 9.0), (2, 10.0), (3, 11.0), (5, 13.0)).seconds == 5.0


def test_a_single_call_is_the_whole(monkeypatch):
    assert watch_of(monkeypatch, (8, 4.0)).seconds == 4.0


def test_a_last_batch_that_is_smaller_counts_for_less(monkeypatch):
    assert watch_of(monkeypatch, (1, 9.0), (2, 10.0), (3, 10.5), examples=10).seconds == 2.5


def test_batches_of_several_sizes_count_for_what_they_have(monkeypatch):
    watch, times = Stopwatch([64, 100, 164, 200]), iter([0.0, 9.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch.on_epoch_begin(0)
    for end in (1, 5):  # of two calls; the second ends past the end
        watch.on_train_batch_end(end)
    assert watch.seconds == 2.0


@pytest.mark.parametrize("loop", list(LOOPS))
def test_it_sees_all_steps_of_an_epoch(loop):
    model, x = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), np.ones([14, 2])
    watch = Stopwatch(trained_of(14))
    model.compile("sgd", "mse")
    TrainingPlan(loop=loop, batch_size=4).fit(model, (x, x[:, :1]), verbose=0, callbacks=[watch])
    assert watch._ends[0][0] == 0
    assert watch._ends[-1][0] == 14
    assert watch.seconds > 0
