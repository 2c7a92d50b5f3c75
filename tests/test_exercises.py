"""benchmarks/exercises.py and its checks, as far as they go without running a recipe."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import exercises
from benchmarks.exercise_checks import (
    BRANCH,
    EXERCISES,
    USUAL_RANKS,
    NotHereError,
    Outcome,
    RunError,
    exercise,
    is_lower,
    ratio_of,
)
from tfperf.cookbook import find_recipe, list_recipes, read_header
from tfperf.cookbook.exercises import ExerciseOutcome, ExerciseRun, ExerciseRuns, effects_by_change
from tfperf.measure import Comparison, Stop, Verdict
from tfperf.measure.comparison import paired
from tfperf.measure.results import Result

HELD, FAILED, NOT_HERE = ExerciseOutcome.HELD, ExerciseOutcome.FAILED, ExerciseOutcome.NOT_HERE
HEADERS = {name: read_header(path) for name, path in list_recipes().items()}
NO_BRANCH = "kept[count] = number; count += number >= limit, in place of the branch of keep_if"


@pytest.fixture
def result(measured, environment):
    """A function that makes a Result of facts, and of a comparison of candidates that take so many seconds."""

    def result(facts=None, meaning=(), **seconds):
        comparisons = ()
        if seconds:
            noise = np.random.default_rng(0).normal(1, 0.01, (len(seconds), 40))
            samples = dict(zip(seconds, noise * np.reshape(list(seconds.values()), (-1, 1)), strict=True))
            names = list(samples)
            pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
            comparison = Comparison(
                measurements=tuple(measured(name, each) for name, each in samples.items()),
                ratios=tuple(paired(one, other, samples[one], samples[other], 0.01) for one, other in pairs),
                rounds=40,
                margin=0.01,
                stopped=Stop.PRECISION,
            )
            comparisons = (comparison,)
        return Result(
            name="made up", environment=environment, comparisons=comparisons, facts=facts or {}, meaning=meaning
        )

    return result


def check(recipe, change, usual, changed):
    return EXERCISES[recipe, change].check(usual, changed)


def test_every_exercise_has_one_check_and_every_check_an_exercise():
    stated = [(name, change) for name, header in HEADERS.items() for change in effects_by_change(header)]
    assert sorted(stated) == sorted(EXERCISES)


def test_two_checks_of_one_exercise_are_refused():
    with pytest.raises(ValueError, match="one check for each exercise"):
        exercise("hybridize", "--batch 256")(lambda usual, changed: None)


def test_an_exercise_without_a_check_is_told():
    header = HEADERS["hybridize"]._replace(tries=("--batch 3: slower.",))
    with pytest.raises(exercises.RecipeError, match="hybridize, --batch 3 has none"):
        exercises.effects({"hybridize": header})


@pytest.mark.parametrize("one", EXERCISES.values(), ids=lambda one: f"{one.recipe} {one.change}")
def test_every_exercise_changes_something(one):
    ways = [bool(one.flags), bool(one.environment), one.edit is not None, bool(one.command)]
    assert sum(ways) == 1 or one.ranks != USUAL_RANKS
    assert all(flag.startswith("--") for flag in one.flags[::2])


def test_what_is_edited_is_in_the_recipe_once(tmp_path):
    one = EXERCISES["hardware_numbers", NO_BRANCH]
    copy = exercises.edited(find_recipe(one.recipe), tmp_path, *one.edit)
    code = copy.read_text(encoding="utf-8")
    assert BRANCH not in code
    compile(code, copy, "exec")
    with pytest.raises(RunError, match="found it 0 times"):
        exercises.edited(copy, tmp_path, *one.edit)


@pytest.mark.parametrize(
    ("graph", "outcome"),
    [(0.5, HELD), (0.1, FAILED), (0.1005, FAILED), (0.05, FAILED)],
    ids=["gains less", "as much", "less within the noise", "more"],
)
def test_a_smaller_gain_must_be_beyond_the_noise(result, graph, outcome):
    usual, changed = result(eager=1.0, graph=0.1), result(eager=1.0, graph=graph)
    found = check("hybridize", "--batch 256", usual, changed)
    assert found.outcome is outcome
    assert "graph against eager: 9.9" in found.words
    assert "as it is" in found.words


def test_too_few_rounds_must_differ_by_more(result):
    usual, near, far = (ratio_of(result(eager=1.0, graph=one), "eager", "graph") for one in (0.1, 0.11, 0.2))
    few = usual.model_copy(update={"verdict": Verdict.TOO_FEW})
    assert is_lower(near, usual)
    assert not is_lower(near, few)
    assert is_lower(far, few)
    assert not is_lower(few, far)


@pytest.mark.parametrize(
    ("usual", "changed", "outcome"),
    [((2.0, 1.0), (1.0, 1.0), HELD), ((2.0, 1.0), (1.5, 1.0), FAILED), ((1.1, 1.0), (1.0, 1.0), FAILED)],
    ids=["alike now", "still apart", "never apart"],
)
def test_what_becomes_alike_was_apart(result, usual, changed, outcome):
    made = (result(**dict(zip(("shuffled", "sorted"), seconds, strict=True))) for seconds in (usual, changed))
    assert check("hardware_numbers", NO_BRANCH, *made).outcome is outcome


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [("[nan, 90, nan]", HELD), ("[80, 90, nan]", FAILED), ("[inf, inf, inf]", FAILED)],
    ids=["most break", "one breaks", "given up"],
)
def test_a_rule_breaks_the_net_in_most_runs(result, runs, outcome):
    name = "steps of each run, by batch: linear, warm-up"
    usual = result({name: "[[300, 280, 310], [120, 110, 100], [70, 80, 60]]"})
    found = check("large_batch", "--batch 64 --rate 0.02", usual, result({name: f"[[300, 280, 310], {runs}]"}))
    assert found.outcome is outcome
    assert "70, 80, 60 as it is" in found.words


def test_ranks_are_read_from_what_the_recipe_says(result):
    seconds = {"one rank": 1.0, "all ranks": 1.6}
    few = result(meaning=("2 ranks train 1,000 images/s, one alone 800",), **seconds)
    slow = result(meaning=("4 ranks train 1,000 images/s, one alone 800",), **seconds | {"all ranks": 3.3})
    fast = result(meaning=("4 ranks train 2,000 images/s, one alone 800",), **seconds)
    assert check("mnist_hvd", "tfperf launch -np 4", few, slow).outcome is HELD
    assert check("mnist_hvd", "tfperf launch -np 4", few, fast).outcome is FAILED


class MadeUpLaboratory(exercises.Laboratory):
    """Gives results, and runs nothing."""

    def __init__(self, usual, changed):
        self.results, self.ran = {"usual": usual, "changed": changed}, []

    def usual(self, recipe):
        return self.results["usual"]

    def changed(self, one):
        self.ran.append(one.change)
        if isinstance(self.results["changed"], Exception):
            raise self.results["changed"]
        return self.results["changed"]


def test_a_machine_that_cannot_show_the_effect_runs_nothing(result, environment):
    one = EXERCISES["tensor_cores", "ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment"]
    usual = result().model_copy(update={"environment": environment.model_copy(update={"cpu_features": ("avx2",)})})
    laboratory = MadeUpLaboratory(usual, usual)
    outcome = exercises.tried(one, laboratory)
    assert outcome == (NOT_HERE, "this processor has neither AVX-512 BF16 nor AMX")
    assert laboratory.ran == []


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        (RunError("exit code 1: no memory"), (FAILED, "exit code 1: no memory")),
        (NotHereError("Horovod: not installed"), (NOT_HERE, "Horovod: not installed")),
    ],
    ids=["failed", "not here"],
)
def test_a_run_without_a_result_is_an_outcome(result, changed, outcome):
    one = EXERCISES["hybridize", "--batch 256"]
    assert exercises.tried(one, MadeUpLaboratory(result(), changed)) == outcome


def test_a_result_without_the_figure_does_not_hold(result):
    one = EXERCISES["hybridize", "--batch 256"]
    outcome = exercises.tried(one, MadeUpLaboratory(result(), result()))
    assert outcome == (FAILED, "made up has no comparison of eager and graph")


def test_a_check_that_fails_is_an_outcome(result):
    one = EXERCISES["async_dispatch", "--queue 400"]
    outcome = exercises.tried(one, MadeUpLaboratory(result(), result()))
    assert outcome.outcome is FAILED
    assert outcome.words.startswith("the check failed: ValueError: ")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder in place of the checkout's, where every exercise holds; gives those that were made."""
    made = []

    def tried(one, laboratory):
        made.append((one.recipe, one.change))
        return Outcome(HELD, "seen [1.0, 2.0]")

    monkeypatch.setattr(exercises, "ROOT", tmp_path)
    monkeypatch.setattr(exercises, "tried", tried)
    return made


def test_what_is_fresh_is_not_made_again(workplace, tmp_path):
    first = exercises.run_exercises(["hybridize"], again=False, quick=False)
    assert [(one.recipe, one.change) for one in first] == workplace
    workplace.clear()
    assert exercises.run_exercises(["hybridize"], again=False, quick=False) == first
    assert workplace == []
    exercises.run_exercises(["hybridize"], again=True, quick=False)
    assert len(workplace) == len(first)
    (file,) = (tmp_path / "docs" / "exercises").iterdir()
    assert exercises.read_exercise_runs(file).find("hybridize", "--batch 256")


def test_exercises_of_another_recipe_stay_in_order(workplace):
    exercises.run_exercises(["save_model"], again=False, quick=False)
    assert {one.recipe for one in exercises.run_exercises(["hybridize"], again=False, quick=False)} == {"hybridize"}
    recipes = [one.recipe for one in exercises.run_exercises(["save_model", "hybridize"], again=False, quick=False)]
    assert recipes == sorted(recipes)
    assert len(workplace) == len(recipes)


def test_a_quick_run_is_not_kept(workplace, tmp_path):
    assert exercises.run_exercises(["hybridize"], again=False, quick=True)
    assert not (tmp_path / "docs").exists()


def test_runs_of_exercises_that_are_no_more_go():
    fields = {"effect": "slower.", "technique": "a" * 64, "outcome": HELD, "words": ""}
    old, new = (ExerciseRun(recipe="hybridize", change=change, **fields) for change in ("--old 1", "--new 1"))
    assert exercises.put(ExerciseRuns(runs=(old,)), new, [("hybridize", "--new 1")]).runs == (new,)


def command(*arguments):
    app = exercises.typer.Typer()
    app.command()(exercises.main)
    return CliRunner().invoke(app, arguments)


def test_the_exit_code_says_whether_all_held(workplace, monkeypatch):
    assert command("--only", "hybridize").exit_code == 0
    monkeypatch.setattr(exercises, "tried", lambda one, laboratory: Outcome(FAILED, "not seen"))
    assert command("--only", "hybridize").exit_code == 0, "they are fresh"
    assert command("--only", "hybridize", "--again").exit_code == 1


def test_an_unknown_recipe_is_one_line():
    done = command("--only", "hybridise")
    assert done.exit_code == 2
    assert done.stderr == "exercises: no recipe 'hybridise'; did you mean 'hybridize'?\n"


def test_ctrl_c_keeps_what_was_done(workplace, monkeypatch):
    command("--only", "hybridize")

    def interrupted(one, laboratory):
        raise KeyboardInterrupt

    monkeypatch.setattr(exercises, "tried", interrupted)
    assert command("--only", "save_model").exit_code == 130
    assert command("--only", "hybridize").exit_code == 0


def test_a_run_is_a_process_whose_result_is_read(result, tmp_path):
    usual = result()
    laboratory = exercises.Laboratory(tmp_path, {"hybridize": usual}, quick=True)
    assert laboratory.usual("hybridize") is usual
    program = f"import sys; open(sys.argv[2], 'w').write({usual.model_dump_json()!r})"
    assert laboratory._run("hybridize", [sys.executable, "-c", program]) == usual
    with pytest.raises(RunError, match="exit code 3: no luck"):
        laboratory._run("hybridize", [sys.executable, "-c", "print('no luck'); raise SystemExit(3)"])
    with pytest.raises(NotHereError, match="nothing to do"):
        laboratory._run("hybridize", [sys.executable, "-c", "print('nothing to do')"])


def test_a_run_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "DEADLINE", 0.5)
    laboratory = exercises.Laboratory(tmp_path, {}, quick=False)
    with pytest.raises(RunError, match=r"did not end within 0\.5 s"):
        laboratory._run("hybridize", [sys.executable, "-c", "import time; time.sleep(60)"])
