"""What may be asked of a search has one description; what is said elsewhere is made of it, or is the same."""

import inspect

import pytest

from tfperf.cli.tune_command import tune as command
from tfperf.search.options import OPTIONS
from tfperf.search.question import TOLERANCE, TRIAL_SECONDS, Question
from tfperf.tuning import tune


def test_every_field_of_a_question_is_described():
    assert list(OPTIONS) == list(Question.model_fields)


@pytest.mark.parametrize("field", OPTIONS)
def test_a_program_is_told_the_same_as_the_command_line(field):
    argument, flag, words = OPTIONS[field]
    assert argument in inspect.signature(tune).parameters
    assert f" {argument}: {words.rstrip('.')}" in " ".join(tune.__doc__.split())
    option = inspect.signature(command).parameters[flag.replace("-", "_")].annotation.__metadata__[0]
    assert option.help.startswith(OPTIONS[field].help().removesuffix("."))


def test_the_command_line_has_the_defaults_of_a_question():
    defaults = {name: one.default for name, one in inspect.signature(command).parameters.items()}
    assert (defaults["tolerance"], defaults["trial_time"]) == (TOLERANCE, TRIAL_SECONDS)
