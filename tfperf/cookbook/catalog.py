"""Where the recipes are, in a checkout and in an installed wheel."""

import difflib
from pathlib import Path

from tfperf.errors import RecipeError

__all__ = ["find_recipe", "list_recipes"]

_PACKAGE = Path(__file__).resolve().parent.parent


def list_recipes() -> dict[str, Path]:
    """Name -> file of every recipe, by name.

    Raises:
        RecipeError: this installation has no recipes.
    """
    for folder in (_PACKAGE.parent / "recipes", _PACKAGE / "_recipes"):  # a checkout, an installed wheel
        recipes = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
        if recipes:
            return recipes
    raise RecipeError("expected the recipes beside or inside the package, found none; install tfperf again")


def find_recipe(name: str) -> Path:
    """The file of one recipe.

    Raises:
        RecipeError: there is no such recipe; the message names the nearest.
    """
    recipes = list_recipes()
    if name in recipes:
        return recipes[name]
    nearest = difflib.get_close_matches(name, recipes, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are: {', '.join(recipes)}"
    raise RecipeError(f"no recipe '{name}'; {hint}")
