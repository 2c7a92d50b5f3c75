"""`tfperf list`."""

__all__ = ["show_recipes"]


def show_recipes() -> None:
    """List the recipes: question, needs, time."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tfperf.cookbook import list_recipes, read_header

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("recipe", no_wrap=True)
    table.add_column("question")
    for name, path in list_recipes().items():
        about = read_header(path)
        details = f"Needs: {escape(about.needs)}\nTime: {escape(about.time)}"
        table.add_row(name, f"{escape(about.title)}\n[dim]{details}[/dim]")
    console = Console(highlight=False)
    console.print(table)
    console.print("\n`tfperf run NAME` runs one; `tfperf run NAME --help` shows its claim, its flags and what to try.")
