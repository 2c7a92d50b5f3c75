"""`tfperf data`."""

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def data(
        name: Annotated[str, typer.Argument(help="The data set: mnist, fashion_mnist or digits.")] = "fashion_mnist",
    ) -> None:
        """Obtain a data set and say where it is: from the Keras cache, a Debian package, or the internet."""
        from tfperf.data import NAMES, obtain

        if name not in NAMES:
            raise typer.BadParameter(f"expected one of {', '.join(NAMES)}, received {name!r}")
        print(obtain(name).describe())
