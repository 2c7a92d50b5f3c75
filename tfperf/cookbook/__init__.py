"""The recipes: where they are, what their headers say, and what all of them share."""

from tfperf.cookbook.catalog import Header, find_recipe, list_recipes, read_header
from tfperf.cookbook.half_precision import TOO_SLOW, speed_words, why_slower
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
