"""The command `tfperf`: its subcommands, and what becomes of bad input."""

import importlib
import io
import sys
from typing import NoReturn

import typer

from tfperf.cli.words import error_words
from tfperf.errors import BAD_INPUT, INTERRUPTED, TfperfError, escape_unprintable
from tfperf.interrupts import restore_interrupts

__all__ = ["app", "main"]

app = typer.Typer(
    help="Makes a Keras model fast on the machine you have, and proves it.",
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich to draw boxes doubles its time
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


for _command in (
    "list", "run", "env", "data", "compare", "horovod", "launch", "doctor", "export", "verify",
    "engines", "tune", "report", "hardware", "explain", "scale",
):  # fmt: skip
    importlib.import_module(f"tfperf.cli.{_command}_command").register(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; ends the process. Bad input is one line on standard error and exit code 2."""
    restore_interrupts()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: a name of another script ends nothing
    try:
        code = app(arguments, prog_name="tfperf", standalone_mode=False)
    except typer.TyperException as error:
        _fail(error.format_message())
    except TfperfError as error:
        _fail(str(error))
    except OSError as error:  # of a path that the user named, or a full disk
        _fail(error_words(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer returns it, too
        print("tfperf: interrupted", file=sys.stderr)
    sys.exit(code or 0)


def _fail(message: str) -> NoReturn:
    print(f"tfperf: {escape_unprintable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(BAD_INPUT)
