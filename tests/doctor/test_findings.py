"""A finding is one line of printable text; lines to paste are for this Python; table, lines and JSON say the same."""

import dataclasses
import io
import json
import os
import shlex
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tfperf.doctor import Finding, State, is_fit
from tfperf.doctor.findings import (
    apt_install,
    findings_json,
    findings_lines,
    findings_table,
    own_command,
    pip_install,
    summary,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["\x1b[2J", "a\nb", "\udcff", "\u202e", "[bold]"]
)
FINDINGS = [
    Finding("Python", State.OK, "3.11"),
    Finding("[bold]NumPy[/bold]", State.MISSING, "not [/] installed", "pip install 'numpy[x]>=2'"),
    Finding("Keras", State.UNFIT, "too old"),
    Finding("GPU", State.NOTE, "none"),
]

SOME = st.lists(
    st.builds(Finding, st.text(max_size=9), st.sampled_from(State), st.text(max_size=30), st.text(max_size=9)),
    max_size=6,
)


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_each_text_is_one_printable_line(subject, found, mend):
    finding = Finding(subject, State.OK, found, mend)
    for text in (finding.subject, finding.found, finding.mend):
        assert text.isprintable()
        text.encode()  # no lone surrogate is left


def test_what_is_printable_stays_as_it_is():
    assert Finding("naïve  [red]x[/red]\tüber\n", State.OK, "").subject == "naïve [red]x[/red] über"
    assert Finding("", State.OK, "\x1b[2J").found == "\\x1b[2J"


@settings(deadline=None)
@given(st.lists(st.sampled_from(State)))
def test_only_missing_and_unfit_fail(states):
    findings = [Finding("x", state, "") for state in states]
    assert is_fit(findings) == (State.MISSING not in states and State.UNFIT not in states)


def test_a_finding_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Finding("x", State.OK, "").state = State.NOTE


def printed(findings, width=100, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(findings_table(findings))
    return console.file.getvalue()


def test_the_table_has_glyph_word_and_text_as_it_is():
    rows = [line.rstrip() for line in printed(FINDINGS).splitlines()]
    assert rows[0].split() == ["✓", "ok", "Python", "3.11"]
    assert rows[1].split(maxsplit=2)[:2] == ["✗", "missing"]
    assert rows[1].endswith("[bold]NumPy[/bold]  not [/] installed")
    assert rows[2].strip() == "to mend: pip install 'numpy[x]>=2'"
    assert rows[3].split()[:2] == ["✗", "unfit"]
    assert rows[4].split()[:2] == ["·", "note"]


def test_colour_never_stands_alone():
    plain = printed(FINDINGS)
    coloured = printed(FINDINGS, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    for finding in FINDINGS:
        assert str(finding.state) in plain


@settings(deadline=None, max_examples=50)
@given(SOME)
def test_nothing_is_lost_in_any_form(findings):
    table = "".join(printed(findings, width=40).split())
    lines = findings_lines(findings)
    for finding in findings:
        for text in (finding.subject, finding.found, finding.mend):
            assert text in lines
            assert not text.isascii() or len(text) > 20 or "".join(text.split())[:1] in table
    read = json.loads(findings_json(findings))
    assert read["fit"] is is_fit(findings)
    assert [Finding(**{**row, "state": State(row["state"])}) for row in read["findings"]] == findings
    assert all(set(row) == {"subject", "state", "found", "mend"} for row in read["findings"])


def test_lines_are_for_grep():
    assert findings_lines(FINDINGS).splitlines() == [
        "ok       Python: 3.11",
        "missing  [bold]NumPy[/bold]: not [/] installed",
        "         to mend: pip install 'numpy[x]>=2'",
        "unfit    Keras: too old",
        "note     GPU: none",
    ]


def test_the_summary_counts_and_judges():
    assert summary(FINDINGS) == "not fit: mend what is missing or unfit (1 ok, 1 missing, 1 unfit, 1 note)"
    assert summary([FINDINGS[0], FINDINGS[0], FINDINGS[3]]) == "fit (2 ok, 1 note)"


def test_a_pip_elsewhere_is_not_the_one_meant(tools):
    tools("pip", "exit 0")
    assert shlex.split(pip_install("a<2", "b[c]")) == [sys.executable, "-m", "pip", "install", "a<2", "b[c]"]


def test_a_pip_beside_this_python_has_a_short_name(tools, monkeypatch):
    pip = tools("pip", "exit 0")
    monkeypatch.setattr(sys, "executable", str(pip.with_name("python")))
    assert pip_install("numpy<3,>=2.0") == "pip install 'numpy<3,>=2.0'"


def test_no_pip_on_the_path_is_no_error(tools):
    assert own_command("tfperf", "data", "mnist").endswith("-m tfperf data mnist")


@pytest.mark.parametrize(("user", "words"), [(0, "apt-get install g++"), (1000, "sudo apt-get install g++")])
def test_apt_is_named_where_it_is(tools, monkeypatch, user, words):
    assert apt_install("g++") == ""
    tools("apt-get", "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert apt_install("g++") == words
