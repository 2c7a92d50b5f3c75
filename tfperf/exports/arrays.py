"""Arrays in files: the inputs that a user gives, and the reference of an export. No pickle is ever loaded."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.errors import ExportError
from tfperf.exports.signature import Signature

__all__ = ["read_arrays", "read_inputs"]


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array of an .npz file.

    Raises:
        ExportError: it is missing, no .npz file, damaged, or holds Python objects, which are not loaded.
    """
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ExportError(f"expected an .npz file of named arrays. Received: {path}, a single array")
            with loaded as arrays:
                return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise ExportError(f"expected an .npz file, {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        why = "it holds Python objects, which are never loaded" if "pickle" in str(error) else f"{error}"
        raise ExportError(f"expected an .npz file of plain arrays. Received: {path}: {why}") from error


def read_inputs(path: Path, signature: Signature) -> tuple[NDArray[Any], ...]:
    """The inputs of a net from an .npz file that names them as its signature does.

    Raises:
        ExportError: the file cannot be read, or does not hold these inputs.
    """
    arrays = read_arrays(path)
    return in_order(arrays, signature, str(path))


def in_order(arrays: Mapping[str, NDArray[Any]], signature: Signature, where: str) -> tuple[NDArray[Any], ...]:
    """The inputs among named arrays, as the signature orders them.

    Raises:
        ExportError: one is missing, unknown, or of another shape or type.
    """
    names = [form.name for form in signature.inputs]
    if set(arrays) != set(names):
        raise ExportError(f"expected the arrays {', '.join(names)} in {where}. Found: {', '.join(arrays) or 'none'}")
    inputs = tuple(arrays[name] for name in names)
    if empty := [name for name, array in zip(names, inputs, strict=True) if not array.size]:
        raise ExportError(f"expected an example at least of {empty[0]} in {where}. Found: none")
    try:
        signature.check(inputs)
    except ValueError as error:
        raise ExportError(f"{where}: {error}") from error
    return inputs
