"""The bubble of a pipeline: predicted, and read from a timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.parallel import StageTask, Timeline, pipeline_bubble, pipeline_seconds

SECONDS = st.lists(st.floats(0.01, 10), min_size=1, max_size=5)
EACH = st.integers(1, 6).flatmap(lambda m: st.lists(st.lists(st.floats(0.01, 10), min_size=m, max_size=m), min_size=1))


def simulated(seconds, begin=0.0, phase="forward"):
    """The tasks of a phase: each waits for its stage and for the stage beside it; (stages, micro-batches) in order."""
    stages, micro_batches = np.shape(seconds)
    free, tasks = [begin] * stages, []
    order = (range(stages), range(micro_batches))
    if phase == "backward":
        order = tuple(map(reversed, order))
    stages_in_order, batches_in_order = map(list, order)
    for index in batches_in_order:
        arrives = begin
        for stage in stages_in_order:
            start = max(arrives, free[stage])
            arrives = free[stage] = start + seconds[stage][index]
            tasks.append(StageTask(stage, index, phase, start, arrives))
    return tasks


@given(seconds=SECONDS, micro_batches=st.integers(1, 9))
def test_predictions_are_those_of_a_task_by_task_simulation(seconds, micro_batches):
    timeline = Timeline(len(seconds), tuple(simulated([[one] * micro_batches for one in seconds])))
    assert pipeline_seconds(micro_batches, seconds) == pytest.approx(timeline.seconds)
    assert pipeline_bubble(micro_batches, seconds) == pytest.approx(timeline.bubble, abs=1e-9)
    assert timeline.task_seconds() == pytest.approx(np.tile(np.array(seconds)[:, None], micro_batches))


@given(forward=EACH, factor=st.floats(0.1, 10))
def test_each_task_may_take_its_own_time(forward, factor):
    backward = (factor * np.array(forward))[::-1]
    there = simulated(forward)
    back = simulated(backward, max(task.end for task in there), "backward")
    timeline = Timeline(len(forward), (*there, *back))
    assert pipeline_seconds(len(forward[0]), forward, backward) == pytest.approx(timeline.seconds)
    assert pipeline_bubble(len(forward[0]), forward, backward) == pytest.approx(timeline.bubble, abs=1e-9)
    np.testing.assert_allclose(timeline.task_seconds("forward"), forward)
    np.testing.assert_allclose(timeline.task_seconds("backward"), backward)


@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 40), training=st.booleans())
def test_equal_stages_have_the_bubble_of_the_textbook(stages, micro_batches, training):
    phases = [[1.0] * stages, [2.0] * stages][: 1 + training]
    assert pipeline_bubble(micro_batches, *phases) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_phases_are_told_apart():
    tasks = (StageTask(0, 0, "forward", 0, 1), StageTask(0, 0, "backward", 1, 4))
    assert Timeline(1, tasks).task_seconds("backward") == [[3]]
    assert Timeline(1, tasks).bubble == 0
