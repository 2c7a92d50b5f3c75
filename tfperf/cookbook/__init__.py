"""The recipes: where they are, what their headers say, and the flags and the sheet that all of them share."""

from tfperf.cookbook.catalog import find_recipe, list_recipes
from tfperf.cookbook.header import Header, read_header
from tfperf.cookbook.recipe import Flag, Recipe

__all__ = ["Flag", "Header", "Recipe", "find_recipe", "list_recipes", "read_header"]
