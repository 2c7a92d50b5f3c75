"""The concordance: every claim of the sources, with a verdict, and what recorded runs say of it."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tfperf.cookbook.catalog import list_recipes
from tfperf.cookbook.recording import Recording
from tfperf.errors import TfperfError
from tfperf.measure.results import Fact, Result

DOCUMENTS = {
    "000": "计算性能 (机器学习)(TensorFlow)",
    "001": "计算性能",
    "002": "6.2 计算性能",
    "003": "深度学习性能瓶颈往往是内存带宽",
    "004": "混合精度, Horovod, MNIST",
}
"""Number and title of each source."""

Verdict = Literal["holds", "dated", "wrong", "depends", "not checkable"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Figure(_Part):
    """Where a recipe's result holds the figure of a claim, and between which bounds the claim holds."""

    recipe: str
    ratio: tuple[str, str] | None = None
    """Names of a comparison: how many times as fast the second is as the first."""
    fact: str = ""
    """The name of a fact; of words, the first number counts."""
    facts: tuple[str, str] | None = None
    """Names of two facts: how many times as large the first is as the second."""
    unit: str = ""
    claimed: float | None = None
    """The source's own figure."""
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if [bool(self.ratio), bool(self.fact), bool(self.facts)].count(True) != 1:
            raise ValueError("expected a ratio, a fact or two facts")
        return self


class Claim(_Part):
    """One claim of a source."""

    id: str = Field(pattern=r"^00[0-4]-\d\d+$")
    heading: str
    claim: str = Field(min_length=1)
    verdict: Verdict
    statement: str = Field(min_length=1)
    recipes: tuple[str, ...]
    figure: Figure | None = None

    @property
    def document(self) -> str:
        """The number of its source."""
        return self.id.partition("-")[0]


def read_concordance(path: Path) -> list[Claim]:
    """All claims, in the order of their ids.

    Raises:
        TfperfError: a claim lacks a field, has a verdict that is none, names a recipe that does not exist, or is there
            twice.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    claims: list[Claim] = []
    for entry in entries:
        try:
            claims.append(Claim.model_validate(entry))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise TfperfError(f"claim {entry.get('id', '?')} in {path.name}: {place}: {fault['msg']}") from error
    ids = [claim.id for claim in claims]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise TfperfError(f"expected each claim of {path.name} once. Received twice: {twice}")
    recipes = list_recipes()
    for claim in claims:
        names = {*claim.recipes, *([claim.figure.recipe] if claim.figure else [])}
        if strangers := sorted(names - recipes.keys()):
            raise TfperfError(f"claim {claim.id} in {path.name} names a recipe that does not exist: {strangers[0]}")
    return claims


def words_of_figure(claim: Claim, machines: Mapping[str, Mapping[str, Recording]]) -> dict[str, str]:
    """Each machine's figure of a claim, whether the claim holds there, and by how much; {} where there is none."""
    words = {}
    if claim.figure is not None:
        for machine, recordings in machines.items():
            if claim.figure.recipe in recordings:
                words[machine] = judge(claim, recordings[claim.figure.recipe].result)
    return words


def judge(claim: Claim, result: Result) -> str:
    """The figure of a result in words, and whether the claim holds by it.

    Raises:
        TfperfError: the result does not hold what the claim names.
    """
    figure = claim.figure
    if figure is None:
        return ""
    value, words = _value(claim.id, figure, result)
    words = f"{words} {figure.unit}".strip()
    if figure.at_least is None and figure.at_most is None:
        return words
    holds = (figure.at_least is None or value >= figure.at_least) and (
        figure.at_most is None or value <= figure.at_most
    )
    against = f"; {value / figure.claimed:.2g} times the source's {figure.claimed:,g}" if figure.claimed else ""
    return f"{'holds' if holds else 'does not hold'}: {words}{against}"


def _value(name: str, figure: Figure, result: Result) -> tuple[float, str]:
    """The figure of a result, as a number and in words without its unit."""
    if figure.fact:
        fact = _fact(name, figure.fact, result)
        number = re.search(r"\d[\d,]*(?:\.\d+)?", fact) if isinstance(fact, str) else None
        if number:
            return float(number[0].replace(",", "")), str(fact)
        return (float(fact), ("no", "yes")[fact]) if isinstance(fact, bool) else (float(fact), _plain(fact))
    if figure.facts:
        first, second = (float(_fact(name, one, result)) for one in figure.facts)
        return first / second, f"{first / second:.3g}"
    for comparison in result.comparisons:
        if set(figure.ratio or ()) <= {measurement.name for measurement in comparison.measurements}:
            estimate = comparison.ratio(*figure.ratio).estimate
            return estimate, f"{estimate:.3g}"
    raise TfperfError(f"claim {name}: the recording of {figure.recipe} compares no {' and '.join(figure.ratio or ())}")


def _plain(number: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _fact(name: str, fact: str, result: Result) -> Fact:
    if fact not in result.facts:
        raise TfperfError(f"claim {name}: the recording of {result.name} has no fact {fact!r}")
    return result.facts[fact]
