"""`tfperf list`, `tfperf env`, `tfperf data`."""

import json

from tfperf.cookbook import list_recipes
from tfperf.measure import Environment


def test_list_shows_every_recipe_with_its_question(tfperf_command):
    result = tfperf_command("list")
    assert result.returncode == 0
    for name in list_recipes():
        assert name in result.stdout
    assert "What does leaving the interpreter buy?" in result.stdout


def test_env_is_for_people_and_for_programs(tfperf_command):
    assert "tensorflow" in tfperf_command("env").stdout
    printed = tfperf_command("env", "--json").stdout
    assert Environment.model_validate_json(printed).packages["tensorflow"]
    assert json.loads(printed)["usable_cores"] >= 1


def test_data_names_what_it_found(tfperf_command):
    result = tfperf_command("data", "digits")
    assert result.returncode == 0
    assert result.stdout.startswith("digits: 1,437 train + 360 test images of 8x8x1")
