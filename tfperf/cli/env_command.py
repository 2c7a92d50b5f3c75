"""`tfperf env`."""

from typing import Annotated

import typer

__all__ = ["env"]


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Show this machine and its software, as result files do."""
    from rich.console import Console

    from tfperf.measure.environment import Environment
    from tfperf.report.tables import environment_table

    environment = Environment.here()
    if as_json:
        print(environment.model_dump_json(indent=1))
    else:
        Console(highlight=False).print(environment_table(environment))
