"""Recordings: they know of which technique they are, and are read strictly."""

import ast
import json

import pytest

from tfperf.cookbook import list_recipes
from tfperf.cookbook.recording import (
    Recording,
    _form,
    read_recordings,
    recorded_machines,
    technique_digest,
    why_stale,
    without_noise,
)
from tfperf.errors import RecipeError, ResultFileError
from tfperf.measure import compare
from tfperf.measure.results import Result, write_result

HYBRIDIZE = list_recipes()["hybridize"]
FIRST = '''    """Trace the net once; later calls run the graph without Python between its layers."""
    return tf.function(net)
'''

ITEM = {
    "Subscript": {
        "value": {"Name": {"id": "'x'", "ctx": {"Load": {}}}},
        "slice": {"Constant": {"value": "'a'"}},
        "ctx": {"Load": {}},
    }
}
"""The form of `x['a']`."""


@pytest.fixture
def changed(tmp_path):
    """A function that gives hybridize with one text replaced."""

    def changed(old, new):
        text = HYBRIDIZE.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path = tmp_path / "hybridize.py"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return path

    return changed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FIRST, FIRST.replace("Trace the net", "Trace it")),
        (FIRST, FIRST.replace("return tf", "# a comment\n    return  tf")),
        ("def main(recipe: Recipe) -> None:", "def main(recipe) -> None:"),
    ],
    ids=["docstring", "comment and space", "main"],
)
def test_words_layout_and_experiment_are_not_the_technique(changed, old, new):
    assert technique_digest(changed(old, new)) == technique_digest(HYBRIDIZE)


def test_a_change_of_the_technique_changes_the_digest(changed):
    path = changed(FIRST, FIRST.replace("tf.function(net)", "tf.function(net, autograph=False)"))
    assert technique_digest(path) != technique_digest(HYBRIDIZE)


def test_every_version_of_python_digests_the_same():
    """Versions 3.11 to 3.13 print this: 3.12 adds empty fields, and each of them quotes an f-string in its own way."""
    (function,) = ast.parse("def first(x): return f\"{x['a']}\"").body
    assert _form(function) == {
        "FunctionDef": {
            "name": "'first'",
            "args": {"arguments": {"args": [{"arg": {"arg": "'x'"}}]}},
            "body": [
                {
                    "Return": {
                        "value": {"JoinedStr": {"values": [{"FormattedValue": {"value": ITEM, "conversion": "-1"}}]}}
                    }
                }
            ],
        }
    }


def test_the_digests_of_all_recipes_differ():
    digests = [technique_digest(path) for path in list_recipes().values()]
    assert len(set(digests)) == len(digests)


def test_six_digits_of_each_figure_are_kept():
    comparison = compare({"eager": lambda: sum(range(2000)), "graph": lambda: sum(range(20))}, time_limit=0.5)
    result = Result(
        name="hybridize", comparisons=(comparison,), facts={"a": 1 / 3, "b": 12345678, "c": True, "d": "1/3"}
    )
    kept = without_noise(result)
    assert kept.facts == {"a": 0.333333, "b": 12345678, "c": True, "d": "1/3"}
    assert kept.comparisons[0].ratio("eager", "graph").verdict == comparison.ratio("eager", "graph").verdict
    assert kept.comparisons[0]["eager"].median == pytest.approx(comparison["eager"].median, rel=1e-5)
    assert len(kept.model_dump_json()) < 0.7 * len(result.model_dump_json())


def test_a_recording_is_stale_when_the_technique_has_changed(changed):
    recording = Recording(technique=technique_digest(HYBRIDIZE), result=Result(name="hybridize"))
    assert why_stale(recording, HYBRIDIZE) == ""
    other = changed(FIRST, FIRST.replace("tf.function(net)", "tf.function(net, autograph=False)"))
    assert "tfperf record hybridize" in why_stale(recording, other)


def test_recordings_are_read_by_machine(tmp_path):
    recording = Recording(technique="0" * 64, result=Result(name="hybridize"))
    write_result(tmp_path / "toy-2" / "hybridize.json", recording)
    (tmp_path / "toy-2" / "hybridize.svg").write_text("<svg/>", encoding="utf-8")
    assert recorded_machines(tmp_path) == ["toy-2"]
    assert read_recordings(tmp_path / "toy-2") == {"hybridize": recording}
    assert recorded_machines(tmp_path / "none") == []
    assert read_recordings(tmp_path / "none") == {}


def test_a_recording_of_no_recipe_is_refused(tmp_path):
    write_result(tmp_path / "no_such.json", Recording(technique="0" * 64, result=Result(name="no_such")))
    with pytest.raises(RecipeError, match=r"no_such\.json"):
        read_recordings(tmp_path)


@pytest.mark.parametrize("change", [{"technique": "0"}, {"version": 2}, {"more": 1}, {"result": None}])
def test_what_is_no_recording_is_refused(tmp_path, change):
    document = json.loads(Recording(technique="0" * 64, result=Result(name="hybridize")).model_dump_json())
    (tmp_path / "hybridize.json").write_text(json.dumps(document | change), encoding="utf-8")
    with pytest.raises(ResultFileError):
        read_recordings(tmp_path)


def test_the_recordings_of_the_book_are_of_todays_techniques():
    folder = HYBRIDIZE.parents[1] / "docs" / "recorded"
    for machine in recorded_machines(folder):
        for name, recording in read_recordings(folder / machine).items():
            assert why_stale(recording, list_recipes()[name]) == ""
            assert (folder / machine / f"{name}.svg").is_file()
            assert recording.result.name == name


def test_the_recordings_of_the_book_name_no_place_of_their_machine():
    folder = HYBRIDIZE.parents[1] / "docs" / "recorded"
    texts = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.*")}
    assert [path.name for path, text in texts.items() for place in ("/root", "/home/", "/tmp/") if place in text] == []
