"""`tfperf record`: what a recipe found is kept under the machine's name, whole, and only where it ended well."""

import pytest
from typer.testing import CliRunner

from tfperf.cli import record_command, run_all
from tfperf.cli.app import app
from tfperf.cookbook import catalog, list_recipes
from tfperf.cookbook.recording import Recording, read_recordings, technique_digest
from tfperf.errors import RecipeError
from tfperf.measure.environment import machine_name
from tfperf.measure.results import Result, read_document, write_result

HEADER = '''"""Is it fast?

Source: none
Claim: it is fast.
Holds not: never.
Needs: nothing.
Time: no time.
Shows: technique
Try: --batch 2: it stays fast.
"""

import sys
from pathlib import Path

from tfperf.measure.results import Result, write_result


def technique():
    """Return at once."""
    return 1

'''
WRITES = """
file = Path("results", Path(__file__).stem + ".json")
assert "--svg" in sys.argv
file.with_suffix(".svg").write_text("<svg/>", encoding="utf-8")
write_result(file, Result(name=file.stem, dataset=f"{Path.home()}/data", meaning=("It is fast.",)))
"""


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A function that records toy recipes, name -> what stands below the technique; gives exit code and folder."""

    def record(recipes, *arguments):
        paths = {}
        for name, text in recipes.items():
            paths[name] = tmp_path / f"{name}.py"
            paths[name].write_text(HEADER + text, encoding="utf-8")
        for module in (catalog, record_command):
            monkeypatch.setattr(module, "list_recipes", lambda: paths, raising=False)
        monkeypatch.setattr("tfperf.cookbook.recording.list_recipes", lambda: paths)
        monkeypatch.setattr(run_all, "lacking", lambda needs: "")
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(app, ["record", "--folder", str(tmp_path / "recorded"), *arguments])
        return result, tmp_path / "recorded" / machine_name()

    return record


def test_result_and_plot_are_kept_without_the_readers_home(record, tmp_path):
    result, folder = record({"toy": WRITES})
    assert result.exit_code == 0, result.output
    recording = read_document(folder / "toy.json", Recording)
    assert recording.technique == technique_digest(tmp_path / "toy.py")
    assert recording.result.dataset == "~/data"
    assert recording.result.meaning == ("It is fast.",)
    assert (folder / "toy.svg").read_text(encoding="utf-8") == "<svg/>"


def test_a_recipe_that_fails_leaves_its_old_recording(record):
    _, folder = record({"toy": WRITES})
    before = (folder / "toy.json").read_bytes()
    result, _ = record({"toy": "sys.exit(3)\n", "other": WRITES})
    assert result.exit_code == 1
    assert (folder / "toy.json").read_bytes() == before
    assert (folder / "other.json").is_file()


def test_only_what_is_missing_or_stale_is_run_again(record):
    _, folder = record({"toy": WRITES, "other": WRITES})
    write_result(folder / "other.json", Recording(technique="0" * 64, result=Result(name="other")))
    before = (folder / "toy.json").stat().st_mtime_ns
    result, _ = record({"toy": WRITES, "other": WRITES}, "--missing")
    assert result.exit_code == 0
    assert (folder / "toy.json").stat().st_mtime_ns == before
    assert read_recordings(folder)["other"].technique != "0" * 64


def test_one_recipe_is_named(record):
    _, folder = record({"toy": WRITES, "other": WRITES}, "toy")
    assert [path.name for path in folder.glob("*.json")] == ["toy.json"]


def test_a_recipe_that_does_not_exist_is_refused(record):
    result, _ = record({"toy": WRITES}, "toi")
    assert isinstance(result.exception, RecipeError)
    assert "did you mean 'toy'" in str(result.exception)


def test_a_folder_that_cannot_be_written_is_refused_before_a_recipe_runs(record, tmp_path):
    (tmp_path / "recorded").write_text("a file", encoding="utf-8")
    result, _ = record({"toy": WRITES})
    assert result.exit_code != 0
    assert not (tmp_path / "results").exists()


def test_what_is_written_for_ranks_is_launched_in_ranks():
    command = record_command.launch_command(list_recipes()["mnist_hvd"])
    assert command[1:5] == ("-m", "tfperf", "launch", "-np")
    assert int(command[5]) >= 2
    assert len(record_command.launch_command(list_recipes()["hybridize"])) == 2
