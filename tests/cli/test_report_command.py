"""`tfperf report`: what it writes, where, and that bad input is one line."""

import pytest

from tests.report import outcomes
from tfperf.cli import main
from tfperf.measure.results import Result, write_result
from tfperf.report import page, tuning


@pytest.fixture
def outcome(measured, environment):
    return outcomes.one_winner(measured, environment)


@pytest.fixture
def result(outcome, tmp_path, monkeypatch):
    """A result file in the working folder."""
    monkeypatch.chdir(tmp_path)
    write_result(tmp_path / "r.json", outcome)
    return tmp_path / "r.json"


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    return ended.value.code


def test_the_report_lies_beside_the_result(tfperf_command, result, outcome, tmp_path):
    told = tfperf_command("report", "r.json")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "report: r.html\n"
    assert (tmp_path / "r.html").read_text() == page.page(outcome)


@pytest.mark.parametrize(
    ("suffix", "written"), [("html", page.page), ("md", tuning.markdown), ("csv", tuning.csv_text)]
)
def test_the_ending_says_what_is_written(result, outcome, tmp_path, suffix, written, capsys):
    target = tmp_path / "deep" / f"a.{suffix}"
    assert run(result, "--output", target) == 0
    assert target.read_bytes().decode() == written(outcome)
    assert capsys.readouterr().out == f"report: {target}\n"


def test_hostile_results_are_reported_too(measured, environment, tmp_path):
    for name, case in outcomes.CASES.items():
        write_result(tmp_path / f"{name}.json", case(measured, environment))
        assert run(tmp_path / f"{name}.json") == 0
        assert (tmp_path / f"{name}.html").read_text().startswith("<!doctype html>")


@pytest.fixture
def wrong(result, outcome, environment, tmp_path):
    """A folder of files that are no good."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    text = result.read_text()
    (folder / "cut.json").write_text(text[: len(text) // 2])
    (folder / "newer.json").write_text(text.replace('"version": 1', '"version": 2'))
    (folder / "lacking.json").write_text(text.replace('"winner"', '"loser"', 1))
    write_result(folder / "other.json", Result(name="a recipe", environment=environment))
    write_result(folder / "odd.json", outcome.model_copy(update={"winner": "nobody"}))
    write_result(folder / "itself.html", outcome)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["{wrong}/none.json"], "No such file"),
        (["{wrong}"], "expected a regular file"),
        (["{wrong}/cut.json"], "is not a result file"),
        (["{wrong}/newer.json"], "newer tfperf"),
        (["{wrong}/lacking.json"], "not a valid result file"),
        (["{wrong}/other.json"], "expected the format 'tfperf tune'"),
        (["{wrong}/odd.json"], "it has no trial 'nobody'"),
        (["{wrong}/itself.html"], "would replace the result file"),
        (["r.json", "--output", "a.pdf"], "expected a report's file to end in .html, .md or .csv. Received: a.pdf"),
        (["r.json", "--output", "{wrong}"], "expected a report's file to end in"),
        (["r.json", "--output", "r.json/a.html"], "cannot write"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, words, wrong, tmp_path, capfd):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert run(*(argument.format(wrong=wrong) for argument in arguments)) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert words in told.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
