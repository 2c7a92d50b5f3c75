"""`tfperf verify`."""

from pathlib import Path
from typing import Annotated

import typer

from tfperf.importing import load_tensorflow

__all__ = ["verify"]


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of a version, or of a net for its newest version.")],
) -> None:
    """Check that an export is whole and gives the same outputs."""
    load_tensorflow()
    from tfperf.errors import escape_unprintable
    from tfperf.exports import verify as check

    found = check(folder)
    manifest = found.manifest
    place = escape_unprintable(found.folder)
    print(f"{place}: {manifest.name} version {manifest.version}, of {manifest.made}")
    print(f"files: {len(manifest.files)}, each as it was written; fingerprint {manifest.fingerprint[:16]}")
    same = "to the last bit" if found.same_bits else f"to {found.agreement.relative_error:.2g}, relative"
    print(f"answers: those of the export, {same}")
