"""Exercises of recipes: their two halves, and the files of those that were run."""

import pytest

from tfperf.cookbook import list_recipes, read_header
from tfperf.cookbook.exercises import (
    ExerciseOutcome,
    ExerciseRun,
    ExerciseRuns,
    effects_by_change,
    exercises_file,
    read_exercise_runs,
    split_exercise,
)
from tfperf.errors import RecipeError, ResultFileError
from tfperf.measure.results import write_result


def a_run(change="--batch 2", **changes):
    fields = {
        "recipe": "hybridize",
        "change": change,
        "effect": "slower.",
        "technique": "a" * 64,
        "outcome": ExerciseOutcome.HELD,
        "words": "2.1x [2.0, 2.2] as it is",
    }
    return ExerciseRun(**fields | changes)


def test_the_first_colon_ends_the_change():
    assert split_exercise("--batch 2: slower: by far.") == ("--batch 2", "slower: by far.")


@pytest.mark.parametrize("text", ["--batch 2", "--batch 2:", "--batch 2: ", ": slower", "", "a:b"])
def test_half_an_exercise_is_refused(text):
    with pytest.raises(RecipeError, match="CHANGE: what should then happen"):
        split_exercise(text)


def test_the_same_change_twice_is_refused():
    header = read_header(list_recipes()["hybridize"])._replace(tries=("--batch 2: slower.", "--batch 2: faster."))
    with pytest.raises(RecipeError, match="different changes"):
        effects_by_change(header)


@pytest.mark.parametrize("name", list_recipes())
def test_every_exercise_has_two_halves(name):
    header = read_header(list_recipes()[name])
    assert tuple(f"{change}: {effect}" for change, effect in effects_by_change(header).items()) == header.tries


def test_what_is_written_is_read_again(tmp_path):
    runs = ExerciseRuns(runs=(a_run(), a_run("--batch 4", outcome=ExerciseOutcome.NOT_HERE)))
    file = exercises_file(tmp_path / "recorded", "epyc-zen3-2")
    assert file == tmp_path / "exercises" / "epyc-zen3-2.json"
    write_result(file, runs)
    assert read_exercise_runs(file) == runs


def test_without_a_file_none_were_run(tmp_path):
    assert read_exercise_runs(tmp_path / "none.json").runs == ()


def test_another_outcome_is_refused(tmp_path):
    file = tmp_path / "runs.json"
    write_result(file, ExerciseRuns(runs=(a_run(),)))
    file.write_text(file.read_text(encoding="utf-8").replace('"held"', '"perhaps"'), encoding="utf-8")
    with pytest.raises(ResultFileError, match="outcome"):
        read_exercise_runs(file)


def test_a_run_is_found_by_recipe_and_change():
    runs = ExerciseRuns(runs=(a_run(), a_run("--batch 4")))
    assert runs.find("hybridize", "--batch 4") is runs.runs[1]
    assert runs.find("save_model", "--batch 4") is None


@pytest.mark.parametrize(
    ("effect", "technique", "fresh"),
    [("slower.", "a" * 64, True), ("faster.", "a" * 64, False), ("slower.", "b" * 64, False)],
)
def test_a_run_is_stale_once_technique_or_effect_are_others(effect, technique, fresh):
    assert a_run().is_fresh(effect, technique) is fresh
