"""The words that readers see: docstrings and help texts are sentences or names, not fragments."""

import ast
import re
from pathlib import Path

import typer

from tfperf.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for room in ("tfperf", "recipes", "benchmarks", "tests") for path in (ROOT / room).rglob("*.py"))
FRAGMENT = re.compile(r"(Of|As|of|as) ")


def texts(path):
    """Every string that stands alone in a file: the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def helps(command, name="tfperf"):
    """The help of every command and of each of its parameters."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for below, one in getattr(command, "commands", {}).items():
        yield from helps(one, f"{name} {below}")


def test_no_docstring_begins_with_a_fragment():
    assert [f"{path}:{line}" for path in FILES for line, text in texts(path) if FRAGMENT.match(text)] == []


def test_no_help_begins_with_a_fragment():
    assert [name for name, text in helps(typer.main.get_command(app)) if FRAGMENT.match(text)] == []


def test_what_it_looks_for_is_found():
    assert FRAGMENT.match("Of a SavedModel.")
    assert not FRAGMENT.match("Offer it.")
    assert len(list(helps(typer.main.get_command(app)))) > 50


def test_the_list_of_commands_has_whole_sentences():
    """A terminal of 80 columns has room for so many letters beside a command's name; typer cuts what is longer."""
    command = typer.main.get_command(app)
    for group in (command, command.commands["horovod"]):
        for name, one in group.commands.items():
            assert not one.get_short_help_str(64).endswith("..."), f"{name}: {one.help}"
