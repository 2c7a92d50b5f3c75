"""`tfperf export`."""

from pathlib import Path
from typing import Annotated

import typer

from tfperf.importing import load_tensorflow

__all__ = ["export"]


def export(
    model: Annotated[
        str,
        typer.Argument(help="A net's name, file.py:callable, module:callable, a .keras file or a SavedModel."),
    ],
    folder: Annotated[Path, typer.Argument(help="The folder in which NAME/VERSION is written.")],
    name: Annotated[str | None, typer.Option(help="The name of the net's folder. Left out: the net's own.")] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="The version to write. Left out: one more than the newest.")
    ] = None,
    softmax: Annotated[bool, typer.Option("--softmax", help="Give probabilities where the net gives logits.")] = False,
    preprocess: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A net whose outputs are the inputs of this one.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="The reference inputs, by their names. Left out: random ones."),
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="Which signature of the SavedModel to run. [serving_default]")
    ] = None,
    warm_up: Annotated[str, typer.Option(metavar="SIZES", help="Batch sizes of the warm-up requests.")] = "1",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights of a net by name.")] = 0,
) -> None:
    """Write a net as a SavedModel, for TensorFlow Serving and others."""
    load_tensorflow()
    from tfperf.cli.options import whole_numbers
    from tfperf.errors import error_message, escape_unprintable
    from tfperf.exports import export as write
    from tfperf.exports import open_model, read_inputs

    batches = whole_numbers("--warm-up", warm_up)
    net = open_model(model, signature=signature, seed=seed)
    before = open_model(preprocess) if preprocess is not None else None
    given = read_inputs(inputs, (before or net).signature) if inputs is not None else None
    try:
        written = write(
            net,
            folder,
            name=name,
            version=version,
            inputs=given,
            preprocess=before,
            softmax=softmax,
            warm_up=batches,
        )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(error_message(error)) from error
    for form in (before or net).signature.inputs:
        print(f"takes {form}")
    for form in net.signature.outputs:
        print(f"gives {form}{', probabilities' if softmax else ''}")
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    place = escape_unprintable(written)
    print(f"{place}: {size:,} bytes; check it with: tfperf verify {place}")
