"""The pages that are made of recipes: what they include, and what is refused."""

import shutil

import pytest
from _book import pages

from tests.book.conftest import ROOT
from tfperf.cookbook import list_recipes
from tfperf.cookbook.exercises import ExerciseOutcome, ExerciseRun, ExerciseRuns, effects_by_change, exercises_file
from tfperf.cookbook.recording import Recording, technique_digest
from tfperf.errors import ResultFileError, TfperfError
from tfperf.measure.results import Result, write_result

RECIPES = list_recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_a_page_includes_the_technique_and_nothing_else(name):
    lines = RECIPES[name].read_text(encoding="utf-8").splitlines()
    for technique in pages.techniques(RECIPES[name], pages.read_header(RECIPES[name]).shows):
        first, last = (part.split("-") for part in technique.lines.split(","))
        before = lines[int(first[0]) - 1 : int(first[1])]
        docstring = " ".join(" ".join(lines[int(first[1]) : int(last[0]) - 1]).split()).strip('"')
        assert before[0].startswith(("def ", "class ", "@"))
        assert before[-1].endswith(":")
        assert docstring == technique.sentence
        assert int(last[0]) <= int(last[1])
    shown = pages.read_header(RECIPES[name]).shows
    for number in filter(None, pages.import_lines(RECIPES[name], shown).split(",")):
        assert lines[int(number) - 1].startswith(("import ", "from "))


def test_a_page_includes_the_imports_that_the_technique_needs_and_no_others():
    path = RECIPES["hardware_numbers"]
    lines = path.read_text(encoding="utf-8").splitlines()
    numbers = pages.import_lines(path, pages.read_header(path).shows).split(",")
    imported = [lines[int(number) - 1] for number in numbers]
    assert "import os" in imported
    assert "import numpy as np" in imported
    assert not [line for line in imported if "tfperf" in line]
    assert pages.import_lines(path, ("gather",)) == ""


@pytest.mark.parametrize(
    "change", ["--batch 256", "--batch 64 --rate 0.02", "tfperf launch -np 4", "tfperf explain mlp", "--queue 1"]
)
def test_a_change_of_options_alone_is_code(change):
    assert pages.OPTIONS.fullmatch(change)


@pytest.mark.parametrize("change", ["--devices 4, without --quick", "X=1 in the environment", "kept[count] = number"])
def test_a_change_in_words_is_text(change):
    assert not pages.OPTIONS.fullmatch(change)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the graph gains less.", "The graph gains less."),
        ("oneDNN is slow.", "oneDNN is slow."),
        ("t1 grows.", "t1 grows."),
    ],
)
def test_a_sentence_begins_with_a_capital_or_a_name(text, sentence):
    assert pages.as_sentence(text) == sentence


def test_letters_of_markup_are_escaped_but_not_in_code():
    assert pages.escape_markdown("a < b * c [1, 2] `x[0] * <y>`") == r"a \< b \* c \[1, 2\] `x[0] * <y>`"


def test_the_library_is_described_once():
    modules = pages.library(ROOT / "docs" / "architecture.md", {"Comparison"})
    places = [entry.place for entries in modules.values() for entry in entries]
    assert len(places) == len(set(places))
    assert "tfperf.tune" in places
    assert "tfperf.training.fuse" in places
    assert not [place for place in places if place.endswith(".Comparison")]
    kinds = {entry.place: entry.directive for entries in modules.values() for entry in entries}
    assert kinds["tfperf.tune"] == "autofunction"
    assert kinds["tfperf.Benchmark"] == "autoclass"


def test_the_help_of_every_command_is_there():
    text = pages.command_line()
    for command in ("tune", "explain", "record", "horovod install"):
        assert f"`tfperf {command}`" in text


def test_what_is_made_again_unchanged_is_not_written_again(docs):
    pages.write_pages(docs)
    page = docs / "recipes" / "hybridize.md"
    before = page.stat().st_mtime_ns
    pages.write_pages(docs)
    assert page.stat().st_mtime_ns == before


def test_every_recipe_and_every_source_has_a_page(docs):
    pages.write_pages(docs)
    assert {path.stem for path in (docs / "recipes").glob("*.md")} == set(RECIPES)
    assert len(list((docs / "concordance").glob("00?.md"))) == len(pages.DOCUMENTS)


def test_a_claim_without_a_verdict_ends_the_build(docs):
    file = docs / "concordance.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('verdict = "holds"\n', "", 1), encoding="utf-8")
    with pytest.raises(TfperfError, match="verdict: Field required"):
        pages.write_pages(docs)


def test_a_header_without_shows_ends_the_build(docs, tmp_path, monkeypatch):
    recipe = tmp_path / "hybridize.py"
    text = RECIPES["hybridize"].read_text(encoding="utf-8")
    shows = next(line for line in text.splitlines(keepends=True) if line.startswith("Shows:"))
    recipe.write_text(text.replace(shows, ""), encoding="utf-8")
    monkeypatch.setattr(pages, "list_recipes", lambda: RECIPES | {"hybridize": recipe})
    with pytest.raises(TfperfError, match="it lacks 'Shows:'"):
        pages.write_pages(docs)


def recorded(docs, digest):
    """A recording of hybridize, made on a machine of its own."""
    shutil.rmtree(docs / "recorded", ignore_errors=True)
    folder = docs / "recorded" / "toy-2"
    folder.mkdir(parents=True)
    result = Result(name="hybridize", meaning=("It is faster.",))
    write_result(folder / "hybridize.json", Recording(technique=digest, result=result))
    return folder


def test_a_recording_of_another_technique_ends_the_build(docs):
    recorded(docs, "0" * 64)
    with pytest.raises(TfperfError, match=r"technique of today, .*: tfperf record hybridize$"):
        pages.write_pages(docs)


def test_a_recording_that_is_cut_off_ends_the_build(docs):
    file = recorded(docs, technique_digest(RECIPES["hybridize"])) / "hybridize.json"
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(ResultFileError):
        pages.write_pages(docs)


def test_each_machine_has_its_tab(docs):
    recorded(docs, technique_digest(RECIPES["hybridize"]))
    (docs / "concordance.toml").write_text("claim = []\n", encoding="utf-8")
    pages.write_pages(docs)
    assert "{tab-item} `toy-2`" in (docs / "recipes" / "hybridize.md").read_text(encoding="utf-8")
    assert "{tab-item}" not in (docs / "recipes" / "async_dispatch.md").read_text(encoding="utf-8")


def test_what_became_of_an_exercise_is_folded_in(docs):
    header = pages.read_header(RECIPES["hybridize"])
    (change, effect), *_ = effects_by_change(header).items()
    fresh, stale = technique_digest(RECIPES["hybridize"]), "0" * 64
    for machine, technique in {"fresh-2": fresh, "stale-2": stale}.items():
        words = {"recipe": "hybridize", "change": change, "effect": effect, "words": "7.5x and 2.1x"}
        run = ExerciseRun(**words, technique=technique, outcome=ExerciseOutcome.HELD)
        write_result(exercises_file(docs / "recorded", machine), ExerciseRuns(runs=(run,)))
    pages.write_pages(docs)
    page = (docs / "recipes" / "hybridize.md").read_text(encoding="utf-8")
    assert "- `fresh-2: held: 7.5x and 2.1x`" in page
    assert "stale-2" not in page
