"""What a question may be."""

import pytest
from pydantic import ValidationError

from tfperf.search.question import OBJECTIVES, Question


def test_what_is_left_out_is_the_latency_of_one_example(asked):
    question = asked()
    assert (question.objectives, question.batches, question.tolerance) == (("latency",), (1,), 1e-4)
    assert (question.time_limit, question.latency_limit, question.accuracy_drop) == (None, None, None)


def test_what_is_written_is_read_again(asked):
    question = asked(objectives=OBJECTIVES, batches=(1, 8), threads=(1, 2, 3), accuracy_drop=0.005, time_limit=9.5)
    assert Question.model_validate_json(question.model_dump_json()) == question


@pytest.mark.parametrize(
    "fields",
    [
        {"objectives": ()},
        {"objectives": ("speed",)},
        {"objectives": ("latency", "latency")},
        {"batches": ()},
        {"batches": (0, 1)},
        {"batches": (2, 1)},
        {"batches": (1, 1)},
        {"threads": ()},
        {"threads": (0,)},
        {"threads": (2, 1)},
        {"engines": ()},
        {"engines": ("\x1b[31m",)},
        {"precisions": ()},
        {"precisions": ("float64",)},
        {"transformations": ("prune",)},
        {"tolerance": -1e-9},
        {"tolerance": float("nan")},
        {"tolerance": float("inf")},
        {"accuracy_drop": 1.01},
        {"accuracy_drop": -0.01},
        {"latency_limit": 0.0},
        {"memory_limit": -1},
        {"trial_seconds": 0.0},
        {"time_limit": 0.0},
        {"hurry": True},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(asked, fields):
    with pytest.raises(ValidationError, match=r"expected|Input should|Extra|at least"):
        asked(**fields)


def test_a_question_stays_as_it_is(asked):
    with pytest.raises(ValidationError, match="frozen"):
        asked().tolerance = 1.0
