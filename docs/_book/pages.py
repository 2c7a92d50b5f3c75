"""The pages that are made: one of each recipe, the concordance, and the reference of commands and result files."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from typer.cli import get_docs_for_click
from typer.main import get_command

from _book.concordance import DOCUMENTS, Claim, read_concordance, words_of_figure
from tfperf.cli.app import app
from tfperf.cookbook.catalog import Header, list_recipes, read_header
from tfperf.cookbook.exercises import FOLDER, ExerciseRuns, effects_by_change, read_exercise_runs
from tfperf.cookbook.recording import Recording, read_recordings, recorded_machines, technique_digest, why_stale
from tfperf.errors import TfperfError

MOST_NEXT = 3
OPTIONS = re.compile(r"(--\S+( [^-\s]\S*)? ?)+|tfperf( [\w-]+)+( \d+)?")
"""A change that is nothing but options or a command."""
PLAIN, HOROVOD = ("tensorflow", "keras", "numpy"), "tfperf.parallel.horovod"
"""What a technique may import beside the standard library."""


class Exercise(NamedTuple):
    """A change that the reader can make, what should then happen, and what happened: machine -> words."""

    change: str
    effect: str
    seen: dict[str, str]


class Technique(NamedTuple):
    """One function of a technique: what it gains the reader, and the lines of its code without that sentence."""

    sentence: str
    lines: str


class Entry(NamedTuple):
    """One name of the library: autodoc's directive for it, and where it is."""

    directive: str
    place: str


def write_pages(docs: Path) -> None:
    """Write every page that is made; one that says the same already is left alone.

    Raises:
        TfperfError: a header lacks a field, a claim lacks its verdict or names no recipe, a recorded run is stale.
    """
    recipes = {name: read_header(path) for name, path in list_recipes().items()}
    machines = {name: read_recordings(docs / "recorded" / name) for name in recorded_machines(docs / "recorded")}
    for recordings in machines.values():
        for name, recording in recordings.items():
            if reason := why_stale(recording, list_recipes()[name]):
                raise TfperfError(reason)
    tried = {path.stem: read_exercise_runs(path) for path in sorted((docs / FOLDER).glob("*.json"))}
    claims = read_concordance(docs / "concordance.toml")
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - what comes out is Markdown
    )
    jinja.filters["text"] = escape_markdown
    jinja.filters["sentence"] = lambda text: escape_markdown(as_sentence(text))
    for name, header in recipes.items():
        page = jinja.get_template("recipe.md.j2").render(_about(name, header, machines, tried, claims, recipes))
        _write(docs / "recipes" / f"{name}.md", page)
    for number, title in DOCUMENTS.items():
        of_document = [claim for claim in claims if claim.document == number]
        figures = {claim.id: words_of_figure(claim, machines) for claim in of_document}
        page = jinja.get_template("concordance.md.j2").render(
            number=number, title=title, claims=of_document, figures=figures
        )
        _write(docs / "concordance" / f"{number}.md", page)
    figures = {claim.id: words_of_figure(claim, machines) for claim in claims}
    page = jinja.get_template("claims.md.j2").render(claims=claims, machines=list(machines), figures=figures)
    _write(docs / "concordance" / "by_machine.md", page)
    _write(docs / "reference" / "command_line.md", command_line())
    elsewhere = set(
        re.findall(r"autoclass:: ([\w.]+)", (docs / "reference" / "results.md").read_text(encoding="utf-8"))
    )
    for module, entries in library(docs / "architecture.md", {name.rpartition(".")[2] for name in elsewhere}).items():
        page = jinja.get_template("module.md.j2").render(module=module, entries=entries)
        _write(docs / "reference" / "api" / f"{module}.md", page)


def _about(
    name: str,
    header: Header,
    machines: dict[str, dict[str, Recording]],
    tried: dict[str, ExerciseRuns],
    claims: Iterable[Claim],
    recipes: dict[str, Header],
) -> dict[str, object]:
    """What the template of a recipe's page is filled with."""
    own = [claim for claim in claims if name in claim.recipes]
    shared = {other: sum(other in claim.recipes for claim in own) for other in recipes if other != name}
    nearest = sorted((other for other in shared if shared[other]), key=lambda other: (-shared[other], other))
    path = list_recipes()[name]
    digest = technique_digest(path)
    return {
        "name": name,
        "header": header,
        "imports": import_lines(path, header.shows),
        "techniques": techniques(path, header.shows),
        "machines": [machine for machine, recordings in machines.items() if name in recordings],
        "exercises": [
            Exercise(
                f"`{change}`" if OPTIONS.fullmatch(change) else change,
                effect,
                {
                    machine: f"{run.outcome}: {run.words}"
                    for machine, runs in tried.items()
                    if (run := runs.find(name, change)) and run.is_fresh(effect, digest)
                },
            )
            for change, effect in effects_by_change(header).items()
        ],
        "claims": own,
        "next": nearest[:MOST_NEXT],
    }


def techniques(path: Path, shown: tuple[str, ...]) -> list[Technique]:
    """The functions and classes that a header names, with the lines of each in the file."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in shown:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            docstring = node.body[0]
            sentence = " ".join((ast.get_docstring(node) or "").split())
            lines = f"{first}-{docstring.lineno - 1},{docstring.end_lineno + 1}-{node.end_lineno}"
            found.append(Technique(sentence, lines))
    return found


def import_lines(path: Path, shown: tuple[str, ...]) -> str:
    """The lines of the imports that a technique needs, as `literalinclude` takes them; "" where it needs none."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    technique = [node for node in module.body if getattr(node, "name", None) in shown]
    used = {name.id for node in technique for name in ast.walk(node) if isinstance(name, ast.Name)}
    lines = []
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = {(one.asname or one.name).partition(".")[0] for one in node.names}
            origin = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            root = origin.partition(".")[0]
            if used & bound and (root in PLAIN or root in sys.stdlib_module_names or origin == HOROVOD):
                lines.append(str(node.lineno))
    return ",".join(lines)


def as_sentence(text: str) -> str:
    """The text with a capital, unless it begins with a name."""
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,:]", text) else text


def escape_markdown(text: str) -> str:
    """The text as Markdown that shows it: outside backticks, letters that would be markup are escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts)


def library(architecture: Path, elsewhere: Iterable[str]) -> dict[str, list[Entry]]:
    """What each public module offers; what several of them offer stands under the first.

    Args:
        architecture: the page whose table promises which modules keep their meaning.
        elsewhere: names that another page describes.
    """
    table = architecture.read_text(encoding="utf-8").partition("## Public rooms")[2].partition("\n## ")[0]
    described, modules = set(elsewhere), {}
    for module in re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE):
        offered = importlib.import_module(module)
        names = [name for name in offered.__all__ if name not in described]
        modules[module] = [_entry(module, name, getattr(offered, name)) for name in names]
        described.update(names)
    return modules


def _entry(module: str, name: str, thing: object) -> Entry:
    """The directive for one name; the docstring of a constant is read where the constant is set."""
    if inspect.isclass(thing) or callable(thing):
        return Entry("autoclass" if inspect.isclass(thing) else "autofunction", f"{module}.{name}")
    homes = [
        home.__name__
        for home in list(sys.modules.values())
        if home.__name__.startswith("tfperf.") and not hasattr(home, "__path__") and vars(home).get(name) is thing
    ]
    homes.sort(key=lambda home: f"\n{name}" not in inspect.getsource(sys.modules[home]))
    return Entry("autodata", f"{homes[0] if homes else module}.{name}")


def command_line() -> str:
    """The help of every command, as typer writes it down."""
    command = get_command(app)
    context = command.make_context("tfperf", [], resilient_parsing=True)
    return get_docs_for_click(obj=command, ctx=context, name="tfperf", title="The command line")


def _write(path: Path, text: str) -> None:
    """Write a page; one that says the same already stays as it is, and Sphinx does not read it again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
