"""Arrays in files: the inputs that a user gives, and the reference of an export. No pickle is ever loaded."""

import math
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from tfperf.errors import ExportError, shortened
from tfperf.exports.signature import Signature
from tfperf.measure.memory import available_memory
from tfperf.measure.words import format_bytes

__all__ = ["read_arrays", "read_inputs"]

MEMORY_SHARE = 0.5
"""The share of the free memory that the arrays of one file may take."""

MOST_PACKED = 100
"""Times by which a file may grow that is unpacked, where it grows large; numbers are seldom packed by more than 10."""

LARGEST_PACKED = 2**27
"""Bytes up to which it may grow by more."""

ENCRYPTED = 1
"""The flag of a member of a zip file, APPNOTE 4.4.4."""

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Version of an array's file -> what reads its header; 3.0 is for arrays of records alone."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array of an .npz file. What the file claims is checked before memory is taken for it.

    Raises:
        ExportError: it is missing, no .npz file, damaged, larger than the free memory, or holds Python objects, which
            are not loaded.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise ExportError(f"expected an .npz file. Received: {path}, which is no regular file")
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise ExportError(f"expected an .npz file of named arrays. Received: {path}, a single array")
            with zipfile.ZipFile(file) as archive:
                _check_members(archive.infolist())
                return {one.filename.removesuffix(".npy"): _read(archive, one) for one in archive.infolist()}
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"expected an .npz file, {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # whatever zipfile, zlib and NumPy say to a damaged file
        words = shortened(error) or type(error).__name__
        raise ExportError(f"expected an .npz file of plain arrays. Received: {path}: {words}") from error


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Refuse what no `np.savez` writes, and what does not fit into memory, before anything is unpacked.

    Raises:
        ValueError: names the first that is wrong.
    """
    names = set()
    for one in members:
        if one.filename in names:
            raise ValueError(f"{one.filename} comes twice")
        if not one.filename.endswith(".npy"):
            raise ValueError(f"{one.filename} is no array")
        if one.flag_bits & ENCRYPTED:
            raise ValueError(f"{one.filename} is encrypted")
        if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{one.filename} is compressed by a method that NumPy does not use")
        names.add(one.filename)
    check_unpacking(members)


def check_unpacking(members: list[zipfile.ZipInfo]) -> None:
    """Refuse a zip file that is much larger once it is unpacked.

    Raises:
        ValueError: says how large.
    """
    size, packed = (sum(getattr(one, field) for one in members) for field in ("file_size", "compress_size"))
    free = available_memory()
    if size > LARGEST_PACKED and size > MOST_PACKED * packed:
        raise ValueError(
            f"it unpacks to {format_bytes(size)}, {size // max(packed, 1)} times its size; do not compress it"
        )
    if size > MEMORY_SHARE * free:
        raise ValueError(f"it unpacks to {format_bytes(size)}, and {format_bytes(free)} of memory are free")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, once its header is known to claim what follows it.

    Raises:
        ValueError: it claims more or less, or holds Python objects.
    """
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} has the version {version[0]}.{version[1]} of the format")
        shape, _, dtype = HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects, which are never loaded")
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if claimed != held or min(shape, default=0) < 0 or not dtype.itemsize:
            raise ValueError(
                f"{member.filename} claims {shape} of {dtype}, which is not the {held:,} bytes that it holds"
            )
    with archive.open(member) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"{member.filename} holds more than an array")
        return array


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
