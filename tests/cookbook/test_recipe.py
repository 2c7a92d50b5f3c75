"""Recipe: the experiment and the record of what it found."""

import numpy as np
import pytest

from tfperf import Flag, Recipe, TfperfError, compare
from tfperf.cookbook.flags import TIME_LIMIT
from tfperf.measure.comparing import PATIENCE
from tfperf.measure.results import read_result

HEADER = '''"""Why?

Source: 000, h
Claim: c
Holds not: h
Needs: n
Time: t
Shows: f
Try: --batch 2: slower.
"""


def f(): ...
'''


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
        recipe.load_data("digits", quick=(20, 10))
        recipe.add(noisy("step", 0.01))
        recipe.agrees("same", [1.0], [1.0])
        recipe.fact("accuracy", 0.5)
        recipe.finds("It is fast.")
        recipe.corrects("it was slow.")
        recipe.plot(lambda figure, values: figure.subplots().plot(values), [1, 2])

    recipe("--quick").run(lesson)
    result = read_result(tmp_path / "out.json")
    assert result.name == "lesson"
    assert result.dataset.startswith("digits: first 20 of ")
    assert result.measurements[0].name == "step"
    assert result.agreements[0].passed
    assert result.facts == {"accuracy": 0.5}
    assert result.meaning == ("It is fast.", "Correction of the source: it was slow.")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_answers_end_it_before_a_speed_is_shown(recipe, tmp_path, capsys):
    def lesson(recipe):
        recipe.agrees("wrong", [1.0, np.nan], [1.0, 2.0])
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


def test_an_error_on_the_readers_net_is_one_line_and_2(recipe, tmp_path, capsys):
    def lesson(recipe):
        recipe.open_model()
        raise ValueError("these layers\n cannot be quantized")

    (tmp_path / "net.py").write_text("import tfperf\n\n\ndef build():\n    return tfperf.get_net('mlp')\n")
    with pytest.raises(SystemExit) as exit_:
        recipe("--model", f"{tmp_path}/net.py:build", model="mlp").run(lesson)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lesson: this experiment cannot be made with ")
    assert line.endswith("net.py:build: ValueError: these layers cannot be quantized")
    with pytest.raises(ValueError, match="these layers"):
        recipe(model="mlp").run(lesson)  # on the recipe's own net it is a fault of tfperf's


def test_own_flags_arrive(recipe):
    assert recipe("--epochs", "5", epochs=Flag(2, "epochs")).flags.epochs == 5


@pytest.mark.parametrize("variable", ["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_of_several_processes_the_first_alone_prints_and_writes(recipe, tmp_path, capsys, monkeypatch, variable):
    def lesson(recipe):
        recipe.finds("It is fast.")
        recipe.plot(lambda figure: figure.subplots().plot([1, 2]))

    monkeypatch.setenv(variable, "1")
    recipe().run(lesson)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob("out.*"))

    monkeypatch.setenv(variable, "0")
    recipe().run(lesson)
    assert "It is fast." in capsys.readouterr().out
    assert len(list(tmp_path.glob("out.*"))) == 2


def test_compare_checks_before_it_measures(recipe, capsys):
    def lesson(recipe):
        recipe.compare({"one": lambda x: x, "other": lambda x: x + 1e-3}, 1.0)

    with pytest.raises(SystemExit) as exit_:
        recipe("--time-limit", "0.2").run(lesson)
    assert exit_.value.code == 2
    shown = capsys.readouterr()
    assert "other DISAGREES" in shown.out
    assert "speed-up" not in shown.out
    assert shown.err.count("\n") == 1


def test_compare_writes_down_what_it_checked_and_measured(recipe, tmp_path):
    def lesson(recipe):
        doubled = {"sum": lambda x: x + x, "product": lambda x: 2 * x}
        recipe.compare(doubled, 3.0, tolerance={"product": 1e-6}, what="doubling")
        recipe.compare(doubled, 3.0, reference=6.0, tolerance=1e-7)
        recipe.compare(doubled, 3.0, tolerance=None)

    recipe("--time-limit", "0.2").run(lesson)
    result = read_result(tmp_path / "out.json")
    assert [(a.candidate, a.tolerance) for a in result.agreements] == [
        ("product", 1e-6),
        ("sum", 1e-7),
        ("product", 1e-7),
    ]
    assert len(result.comparisons) == 3


def test_compare_tells_how_long_it_takes_at_most(recipe, capsys):
    def lesson(recipe):
        same = {"one": lambda: 1.0, "other": lambda: 1.0}
        recipe.compare(same, what="as told")
        recipe.compare(same, what="longer", time_limit=0.3)

    recipe("--time-limit", "0.2").run(lesson)
    shown = capsys.readouterr().out
    assert "as told: at most 0.2 s" in shown
    assert "longer: at most 0.3 s" in shown


@pytest.mark.parametrize(("arguments", "patient"), [([], True), (["--quick"], False), (["--time-limit", "0.2"], False)])
def test_compare_takes_longer_for_a_verdict_where_nobody_gave_a_limit(recipe, monkeypatch, capsys, arguments, patient):
    asked = []

    def briefly(candidates, args, **options):
        asked.append(options["patient"])
        return compare(candidates, args, time_limit=0.1)

    monkeypatch.setattr("tfperf.cookbook.recipe.compare", briefly)
    recipe(*arguments).run(lambda recipe: recipe.compare({"one": lambda: 1.0, "other": lambda: 1.0}, what="both"))
    assert asked == [patient]
    assert f"both: at most {TIME_LIMIT * PATIENCE:.0f} s" in capsys.readouterr().out or not patient


def test_a_batch_larger_than_the_data_is_refused(recipe, capsys):
    with pytest.raises(SystemExit) as exit_:
        recipe("--batch", "1000000").run(lambda recipe: recipe.load_data("digits"))
    assert exit_.value.code == 2
    assert "--batch 1000000" in capsys.readouterr().err
