"""The recipes: where they are, what their headers say, and what all of them share."""

from tfperf.cookbook.catalog import find_recipe, list_recipes
from tfperf.cookbook.half_precision import TOO_SLOW, speed_words, why_slower
from tfperf.cookbook.header import Header, read_header
from tfperf.cookbook.recipe import Flag, Recipe

__all__ = [
    "TOO_SLOW",
    "Flag",
    "Header",
    "Recipe",
    "find_recipe",
    "list_recipes",
    "read_header",
    "speed_words",
    "why_slower",
]
