"""A finding is one line of printable text, and what is optional never fails."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.doctor import Finding, State, is_fit
from tfperf.doctor.finding import one_line

ANY_TEXT = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["\x1b[2J", "a\nb", "\udcff", "\u202e", "[bold]"]
)


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_each_text_is_one_printable_line(subject, found, mend):
    finding = Finding(subject, State.OK, found, mend)
    for text in (finding.subject, finding.found, finding.mend):
        assert text.isprintable()
        text.encode()  # no lone surrogate is left


def test_what_is_printable_stays_as_it_is():
    assert one_line("naïve  [red]x[/red]\tüber\n") == "naïve [red]x[/red] über"
    assert one_line("\x1b[2J") == "\\x1b[2J"
    assert one_line(None) == "None"


@settings(deadline=None)
@given(st.lists(st.sampled_from(State)))
def test_only_missing_and_unfit_fail(states):
    findings = [Finding("x", state, "") for state in states]
    assert is_fit(findings) == (State.MISSING not in states and State.UNFIT not in states)


def test_a_finding_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Finding("x", State.OK, "").state = State.NOTE
