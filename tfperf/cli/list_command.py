"""`tfperf list`."""

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("list")
    def list_recipes() -> None:
        """List the recipes: question, needs, time."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from tfperf.cookbook import catalog, header

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("recipe", no_wrap=True)
        table.add_column("question")
        for name, path in catalog.list_recipes().items():
            about = header.read_header(path)
            details = f"Needs: {escape(about.needs)}\nTime: {escape(about.time)}"
            table.add_row(name, f"{escape(about.title)}\n[dim]{details}[/dim]")
        console = Console(highlight=False)
        console.print(table)
        console.print(
            "\n`tfperf run NAME` runs one; `tfperf run NAME --help` shows its claim, its flags and what to try."
        )
