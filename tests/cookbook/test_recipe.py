"""Recipe: the sheet on which a recipe writes down what it found."""

import numpy as np
import pytest

from tfperf import Flag, Recipe, TfperfError, check_agreement
from tfperf.measure.results import read_result

HEADER = '"""Why?\n\nCommand: c\nNeeds: n\nTime: t\nSource: s\nExpect: e\n"""\n'


@pytest.fixture
def recipe(tmp_path):
    """A function that makes a recipe with these arguments, writing to tmp_path/out.json."""
    path = tmp_path / "lesson.py"
    path.write_text(HEADER)

    def recipe(*arguments, **own):
        return Recipe(str(path), batch=1, arguments=["--json", str(tmp_path / "out.json"), *arguments], **own)

    return recipe


def test_what_was_found_is_written(recipe, tmp_path, noisy):
    def lesson(recipe):
        recipe.uses("digits: some images")
        recipe.add(noisy("step", 0.01))
        recipe.add(check_agreement("same", [1.0], [1.0]))
        recipe.fact("accuracy", 0.5)
        recipe.means("It is fast.")
        recipe.plot(lambda figure: figure.subplots().plot([1, 2]))

    recipe().run(lesson)
    result = read_result(tmp_path / "out.json")
    assert result.name == "lesson"
    assert result.dataset == "digits: some images"
    assert result.measurements[0].name == "step"
    assert result.agreements[0].passed
    assert result.facts == {"accuracy": 0.5}
    assert result.meaning == ("It is fast.",)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_answers_end_it_before_a_speed_is_shown(recipe, tmp_path, capsys):
    def lesson(recipe):
        recipe.add(check_agreement("wrong", [1.0, np.nan], [1.0, 2.0]))
        pytest.fail("went on after wrong answers")

    with pytest.raises(SystemExit) as exit_:
        recipe().run(lesson)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_an_error_that_is_foreseen_is_one_line_and_2(recipe, capsys):
    def lesson(recipe):
        raise TfperfError("expected this, found that; do so")

    with pytest.raises(SystemExit) as exit_:
        recipe().run(lesson)
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "lesson: expected this, found that; do so\n"


def test_ctrl_c_is_one_line_and_130(recipe, tmp_path, capsys):
    def lesson(recipe):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as exit_:
        recipe().run(lesson)
    assert exit_.value.code == 130
    assert "nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_an_error_that_is_not_foreseen_keeps_its_traceback(recipe):
    def lesson(recipe):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recipe().run(lesson)


def test_own_flags_arrive(recipe):
    assert recipe("--epochs", "5", epochs=Flag(2, "epochs")).flags.epochs == 5


@pytest.mark.parametrize("variable", ["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_of_several_processes_the_first_alone_prints_and_writes(recipe, tmp_path, capsys, monkeypatch, variable):
    def lesson(recipe):
        recipe.means("It is fast.")
        recipe.plot(lambda figure: figure.subplots().plot([1, 2]))

    monkeypatch.setenv(variable, "1")
    recipe().run(lesson)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob("out.*"))

    monkeypatch.setenv(variable, "0")
    recipe().run(lesson)
    assert "It is fast." in capsys.readouterr().out
    assert len(list(tmp_path.glob("out.*"))) == 2
