"""`tfperf compare`: its four exit codes, and what it prints."""

from types import SimpleNamespace

import numpy as np
import pytest

from tfperf.cli import main
from tfperf.measure.results import Result, write_result


@pytest.fixture
def written(tmp_path):
    """A function that writes a result file of some measurements; its path."""

    def written(name, *measurements):
        path = tmp_path / name
        write_result(path, Result(name="test", measurements=measurements))
        return path

    return written


@pytest.fixture
def compare(capfd, monkeypatch):
    """A function that runs the command in this process: its exit code, and what it prints."""
    monkeypatch.setenv("COLUMNS", "200")

    def compare(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, arguments)])
        printed = capfd.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)

    return compare


def test_the_same_file_is_no_regression(tfperf_command, written, noisy):
    file = written("a.json", noisy("step", 0.01))
    result = tfperf_command("compare", file, file)
    assert result.returncode == 0, result.stderr
    assert "no regression" in result.stdout


def test_a_regression_is_1(compare, written, noisy):
    before, after = written("a.json", noisy("step", 0.010)), written("b.json", noisy("step", 0.012, seed=1))
    result = compare(before, after)
    assert result.returncode == 1
    assert "regression" in result.stdout
    assert "1.2" in result.stdout


def test_faster_is_no_regression(compare, written, noisy):
    before, after = written("a.json", noisy("step", 0.012)), written("b.json", noisy("step", 0.010, seed=1))
    assert compare(before, after).returncode == 0


def test_noise_is_3(compare, written, noisy):
    before = written("a.json", noisy("step", 0.01, spread=0.3, samples=30))
    after = written("b.json", noisy("step", 0.01, spread=0.3, samples=30, seed=1))
    result = compare(before, after)
    assert result.returncode == 3
    assert "too noisy to say" in result.stdout


def test_the_threshold_decides(compare, written, noisy):
    before, after = written("a.json", noisy("step", 0.010)), written("b.json", noisy("step", 0.012, seed=1))
    assert compare(before, after, "--threshold", "30%").returncode == 0


def test_one_regression_among_many_is_a_regression(compare, written, noisy):
    before = written("a.json", noisy("a", 0.01), noisy("b", 0.01))
    after = written("b.json", noisy("a", 0.005, seed=1), noisy("b", 0.02, seed=1))
    assert compare(before, after).returncode == 1


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[1]", b'{"format": "tfperf result", "version": 0}', b"\xff\xfe"]
)
def test_bad_files_are_one_line_and_2(compare, written, noisy, tmp_path, content):
    good, bad = written("a.json", noisy("step", 0.01)), tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    for arguments in ((good, bad), (bad, good)):
        result = compare(*arguments)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
        assert "bad.json" in result.stderr


def test_no_common_name_is_bad_input(compare, written, noisy):
    result = compare(written("a.json", noisy("a", 0.01)), written("b.json", noisy("b", 0.01)))
    assert result.returncode == 2
    assert "'a'" in result.stderr
    assert "'b'" in result.stderr


def test_what_only_one_file_has_is_named(compare, written, noisy):
    before = written("a.json", noisy("both", 0.01), noisy("old", 0.01))
    result = compare(before, written("b.json", noisy("both", 0.01)))
    assert "'old' is only in" in result.stdout


@pytest.mark.parametrize("threshold", ["two", "-1%", "1001%"])
def test_a_wrong_threshold_is_one_line_and_2(compare, written, noisy, threshold):
    file = written("a.json", noisy("step", 0.01))
    result = compare(file, file, "--threshold", threshold)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "--threshold" in result.stderr


def test_names_are_not_read_as_markup(compare, written, measured):
    file = written("a.json", measured("[red]step[/red]", np.full(50, 0.01)))
    assert "[red]step[/red]" in compare(file, file).stdout
