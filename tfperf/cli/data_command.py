"""`tfperf data`."""

from typing import Annotated

import typer

__all__ = ["data"]


def data(
    name: Annotated[str, typer.Argument(help="The data set: mnist, fashion_mnist or digits.")] = "fashion_mnist",
) -> None:
    """Find or fetch a data set, and say where it is.

    It comes from the Keras cache, from a Debian package, or from the internet.
    """
    from tfperf.data import NAMES, obtain

    if name not in NAMES:
        raise typer.BadParameter(f"expected one of {', '.join(NAMES)}, received {name!r}")
    print(obtain(name).describe())
