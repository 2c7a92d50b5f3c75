"""Tables for terminals."""

import io

import numpy as np
import pytest
from rich.console import Console

from tfperf.measure import compare
from tfperf.measure.results import Result
from tfperf.report import tables


@pytest.fixture
def shown():
    """A function that renders a table as a terminal of some width would show it."""

    def shown(table, width=120):
        screen = io.StringIO()
        Console(width=width, file=screen, highlight=False).print(table)
        return screen.getvalue()

    return shown


@pytest.fixture(scope="module")
def comparison():
    return compare({"short": lambda: sum(range(100)), "long": lambda: sum(range(1000))}, time_limit=1.0)


def test_a_comparison_fits_a_narrow_terminal(shown, comparison):
    text = shown(tables.comparison_table(comparison), width=80)
    assert "short" in text
    assert "baseline" in text
    assert "slower" in text
    assert "…" not in "".join(line for line in text.splitlines() if not line.startswith("doubt"))


def test_a_narrow_terminal_breaks_no_word(shown, noisy):
    names = ("a concrete function of tensors", "the exported SavedModel in TensorFlow")
    text = shown(tables.measurement_table([noisy(name, 0.01) for name in names]), width=80)
    words = text.replace("│", " ").split()
    assert {word for name in names for word in name.split()} <= set(words)


def test_a_measurement_names_its_time_and_memory(shown, noisy):
    text = shown(tables.measurement_table([noisy("step", 0.0123)]))
    assert "12.3" in text
    assert "ms" in text
    assert "300 MiB (+100 MiB)" in text


def test_doubts_are_below_the_table(shown, measured):
    from tfperf.measure import Doubt

    doubt = Doubt(name="drift", words="it drifts", advice="wait")
    text = shown(tables.measurement_table([measured("step", np.full(20, 0.01), doubts=(doubt,))]))
    assert "doubt: it drifts: wait (step)" in text


def test_doubts_of_a_kind_share_one_line(shown, measured):
    from tfperf.measure import Doubt

    few = [Doubt(name="vague", words=f"known to {share} %", advice="raise the time limit") for share in (3, 5)]
    known = [measured(name, np.full(20, 0.01), doubts=(doubt,)) for name, doubt in zip("ab", few, strict=True)]
    text = shown(tables.measurement_table(known))
    assert "doubt: vague: raise the time limit (a; b)" in text


def test_a_doubt_takes_one_line_of_a_narrow_terminal(shown, measured):
    from tfperf.measure import Doubt

    doubt = Doubt(name="drift", words="it drifts " * 9, advice="wait")
    lines = shown(tables.measurement_table([measured("step", np.full(20, 0.01), doubts=(doubt,))]), 80).splitlines()
    assert sum("drifts" in line for line in lines) == 1
    assert max(map(len, lines)) <= 80


def test_names_are_not_read_as_markup(shown, noisy):
    assert "[red]x[/red]" in shown(tables.measurement_table([noisy("[red]x[/red]", 1)]))
    assert "[bold]y" in shown(tables.summary_table([Result(name="[bold]y", meaning=("[link=x]z",))]))


def test_the_environment_shows_every_field(shown, environment):
    text = shown(tables.environment_table(environment))
    for word in ("cpu", "usable cores", "memory", "governor", "python", "tensorflow", environment.python):
        assert word in text
