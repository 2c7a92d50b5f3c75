"""Where recipes are found."""

import pytest

from tfperf.cookbook import catalog
from tfperf.errors import RecipeError


def test_an_unknown_name_tells_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'hybridize'"):
        catalog.find_recipe("hybridise")


def test_a_name_like_none_lists_all():
    with pytest.raises(RecipeError, match=r"async_dispatch, auto_parallel, .*, transfers$"):
        catalog.find_recipe("zzzz")


@pytest.mark.parametrize("name", ["../setup", "/etc/passwd", "hybridize.py", ""])
def test_a_path_is_no_name(name):
    with pytest.raises(RecipeError):
        catalog.find_recipe(name)


def test_an_installed_wheel_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_PACKAGE", tmp_path / "tfperf")
    with pytest.raises(RecipeError, match="found none"):
        catalog.list_recipes()
    inside = tmp_path / "tfperf" / "_recipes"
    inside.mkdir(parents=True)
    (inside / "a.py").touch()
    (inside / "_private.py").touch()
    assert catalog.list_recipes() == {"a": inside / "a.py"}
