"""The bubble of a pipeline: predicted, and read from a timeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.parallel import StageTask, Timeline, pipeline_bubble, pipeline_seconds

SECONDS = st.lists(st.floats(0.01, 10), min_size=1, max_size=5)


def simulated(seconds, micro_batches):
    """The timeline of a forward phase, task by task: each waits for its stage and for the stage before."""
    free, tasks = [0.0] * len(seconds), []
    for index in range(micro_batches):
        arrives = 0.0
        for stage, length in enumerate(seconds):
            start = max(arrives, free[stage])
            arrives = free[stage] = start + length
            tasks.append(StageTask(stage, index, "forward", start, arrives))
    return Timeline(len(seconds), tuple(tasks))


@given(seconds=SECONDS, micro_batches=st.integers(1, 9))
def test_predictions_are_those_of_a_task_by_task_simulation(seconds, micro_batches):
    timeline = simulated(seconds, micro_batches)
    assert pipeline_seconds(micro_batches, seconds) == pytest.approx(timeline.seconds)
    assert pipeline_bubble(micro_batches, seconds) == pytest.approx(timeline.bubble, abs=1e-9)
    assert timeline.stage_seconds() == pytest.approx(seconds)


@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 40), training=st.booleans())
def test_equal_stages_have_the_bubble_of_the_textbook(stages, micro_batches, training):
    phases = [[1.0] * stages, [2.0] * stages][: 1 + training]
    assert pipeline_bubble(micro_batches, *phases) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_phases_are_told_apart():
    tasks = (StageTask(0, 0, "forward", 0, 1), StageTask(0, 0, "backward", 1, 4))
    assert Timeline(1, tasks).stage_seconds("backward") == [3]
    assert Timeline(1, tasks).bubble == 0
