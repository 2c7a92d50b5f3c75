"""The flags that every recipe has."""

import argparse
import math
import shutil
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tfperf.cookbook.catalog import FIELDS, Header
from tfperf.files import why_not_writable
from tfperf.measure.comparing import PATIENCE

__all__ = ["Flag", "check_shared_flags", "describe", "parse_flags", "result_file"]

QUICK_TIME_LIMIT = 3.0
"""Seconds a comparison may take with --quick."""

TIME_LIMIT = 20.0
"""Seconds a comparison may take without it."""


class Flag(NamedTuple):
    """A flag of one recipe's own: its default, whose type is the flag's, and what it sets."""

    default: int | float | str
    help: str
    choices: tuple[str, ...] | None = None
    """The only values it may have; None: any."""


def result_file(name: str) -> Path:
    """Where the recipe of this name writes its result, unless told otherwise."""
    return Path("results", f"{name}.json")


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage of every flag around it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse_flags(
    name: str, header: Header, *, batch: int, model: str | None, own: Mapping[str, Flag], arguments: list[str] | None
) -> argparse.Namespace:
    """The values of all flags: quick, svg, json, batch, seed, time_limit, model and inputs, and the recipe's own.

    Beside them `patient`: whether comparisons may take longer than the time limit, as nobody gave one.

    Args:
        name: the recipe's.
        batch: default of --batch.
        model: default of --model; None: this recipe works on its own net only, and has no such flag.
        own: flags of this recipe alone, by name with underscores.
        arguments: the command line's; None: those of this process.

    Raises:
        SystemExit: with 2 after one line for a wrong flag, with 0 after --help.
    """
    parser = _OneLineParser(
        prog=f"tfperf run {name}",
        description=describe(header),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_shared(parser)
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", default=result_file(name),
        help="where the result goes; the plot goes beside it (default: %(default)s)")  # fmt: skip
    add("--batch", type=_whole(1), metavar="N", default=batch, help="examples in a batch (default: %(default)s)")
    if model is not None:
        add("--model", metavar="MODEL", default=model,
            help="the net to experiment on, yours too: file.py:function, module:function, a .keras file, or a name of "
            "get_net (default: %(default)s)")  # fmt: skip
        add("--inputs", type=Path, metavar="FILE.npz", default=None,
            help="inputs for the model, one array for each by its name (default: random numbers)")  # fmt: skip
    for flag, (default, words, choices) in own.items():
        add(f"--{flag.replace('_', '-')}", type=_parser_like(default), metavar=type(default).__name__.upper(),
            choices=choices, default=default, help=f"{words} (default: %(default)s)")  # fmt: skip
    flags = parser.parse_args(arguments)
    flags.patient = flags.time_limit is None and not flags.quick
    if flags.time_limit is None:
        flags.time_limit = QUICK_TIME_LIMIT if flags.quick else TIME_LIMIT
    try:
        reason = why_not_writable(flags.json)
    except OSError as error:  # a name that is too long
        reason = error.strerror
    if reason:
        parser.error(f"argument --json: {reason}")
    return flags


def describe(header: Header) -> str:
    """The whole header as `--help` shows it, as wide as the terminal."""
    texts = {
        "Source": header.source,
        "Claim": header.claim,
        "Expect": header.expect,
        "Holds not": header.holds_not,
        "Needs": header.needs,
        "Time": header.time,
        "Shows": ", ".join(header.shows),
        "Try": "\n".join(f"- {one}" for one in header.tries) if len(header.tries) > 1 else header.tries[0],
        "Command": header.command,
    }
    width = min(shutil.get_terminal_size().columns, 120)
    lines = [header.title]
    for field in FIELDS:
        for number, text in enumerate(texts[field].splitlines()):
            opening = f"{field}: " if number == 0 else " " * 4
            lines.append(textwrap.fill(text, width, initial_indent=opening, subsequent_indent=" " * 6))
    return "\n".join(lines)


def check_shared_flags(arguments: list[str]) -> None:
    """Refuse, before any recipe runs, flags of `tfperf run --all` that are wrong, or that not every recipe can take.

    Raises:
        SystemExit: as `parse_flags`.
    """
    about = "Runs every recipe, one after the other; ends with a table."
    parser = _OneLineParser(prog="tfperf run --all", description=about, allow_abbrev=False)
    _add_shared(parser)
    parser.parse_args(arguments)
    if reason := why_not_writable(result_file("all")):
        parser.error(reason)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the flags that mean the same to every recipe."""
    add = parser.add_argument
    add("--quick", action="store_true", help="a short run with rougher figures")
    add("--svg", action="store_true", help="draw the plot as SVG, not as PNG")
    add(
        "--seed",
        type=_whole(0, most=2**32 - 1),
        metavar="N",
        default=0,
        help="seed of weights, inputs and orders (default: %(default)s)",
    )
    add("--time-limit", type=_positive, metavar="SECONDS",
        help=f"most time for each comparison (default: {TIME_LIMIT:g}, and up to {PATIENCE:g} times that where rounds "
        f"would be too few for a verdict; with --quick {QUICK_TIME_LIMIT:g})")  # fmt: skip


def _parser_like(default: int | float | str) -> Callable[[str], Any]:
    """The parser of a flag whose default is this."""
    if isinstance(default, int):
        return _whole(1)
    return _positive if isinstance(default, float) else str


def _whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            end = "on" if most == math.inf else f"to {most}"
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} {end}, received {text!r}")
        return number

    return parse


def _positive(text: str) -> float:
    """Parse a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, received {text!r}")
    return number
