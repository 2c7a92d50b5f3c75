"""The same findings as a table, as lines and as JSON."""

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tfperf.doctor import Finding, State, is_fit
from tfperf.doctor.printing import findings_json, findings_lines, findings_table, summary

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
