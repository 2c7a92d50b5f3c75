"""`tfperf list`."""

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("list")
    def list_recipes() -> None:
        """List the recipes: the question each answers, what it needs, how long it takes."""
        from rich.console import Console
        from rich.table import Table

        from tfperf.cookbook import catalog, header

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("recipe", "question", "needs", "time"):
            table.add_column(column, no_wrap=column == "recipe")
        for name, path in catalog.list_recipes().items():
            about = header.read_header(path)
            table.add_row(name, about.title, about.needs, about.time)
        Console(highlight=False).print(table)
