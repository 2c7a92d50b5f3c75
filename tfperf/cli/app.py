"""The command `tfperf`: its subcommands, and what becomes of bad input."""

import io
import sys
from typing import NoReturn

import typer

from tfperf.cli.compare_command import compare
from tfperf.cli.data_command import data
from tfperf.cli.doctor_command import doctor
from tfperf.cli.engines_command import engines
from tfperf.cli.env_command import env
from tfperf.cli.explain_command import explain
from tfperf.cli.export_command import export
from tfperf.cli.hardware_command import hardware
from tfperf.cli.horovod_command import horovod
from tfperf.cli.launch_command import launch
from tfperf.cli.list_command import show_recipes
from tfperf.cli.record_command import record
from tfperf.cli.report_command import report
from tfperf.cli.run_command import run
from tfperf.cli.scale_command import scale
from tfperf.cli.tune_command import tune
from tfperf.cli.verify_command import verify
from tfperf.errors import BAD_INPUT, INTERRUPTED, TfperfError, error_message, escape_unprintable
from tfperf.system import forget_interruption, restore_interrupts

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


app.command("list")(show_recipes)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
)(run)
app.command()(record)
app.command()(env)
app.command()(data)
app.command()(compare)
app.add_typer(horovod, name="horovod")
app.command(context_settings={"allow_interspersed_args": False})(launch)
app.command()(doctor)
app.command()(export)
app.command()(verify)
app.command()(engines)
app.command()(tune)
app.command()(report)
app.command()(hardware)
app.command()(explain)
app.command()(scale)


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
        _fail(error_message(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer returns it, too
        print("tfperf: interrupted", file=sys.stderr)
    forget_interruption()
    sys.exit(code or 0)


def _fail(message: str) -> NoReturn:
    print(f"tfperf: {escape_unprintable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(BAD_INPUT)
