"""From files to arrays: nothing is parsed before its SHA-256 is right, and no pickle is ever loaded."""

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfperf.data.dataset import Dataset
from tfperf.data.expected import ExpectedFile, ImageSet
from tfperf.data.places import Place
from tfperf.errors import DataError

__all__ = ["holds", "parse_idx", "parse_npz", "read_checked", "read_set", "unpacked_and_checked"]


def holds(place: Place, spec: ImageSet) -> bool:
    """Whether every file of the data set has an entry in this place, good or bad."""
    return all(os.path.lexists(place.folder / file.filename) for file in spec.files)


def read_set(place: Place, spec: ImageSet) -> Dataset:
    """Read, check and assemble a data set from a place that `holds` it.

    Raises:
        DataError: a file is corrupt, is not a regular file, or cannot be read; the message names it.
    """
    contents = {file.filename: read_checked(place.folder / file.filename, file, place.remedy) for file in spec.files}
    shapes = [
        (spec.n_train, *spec.image_shape),
        (spec.n_train,),
        (spec.n_test, *spec.image_shape),
        (spec.n_test,),
    ]
    try:
        if len(spec.files) == 1:
            keys = ("x_train", "y_train", "x_test", "y_test")
            arrays = parse_npz(contents[spec.files[0].filename], dict(zip(keys, shapes, strict=True)))
        else:
            arrays = [parse_idx(contents[file.filename], shape) for file, shape in zip(spec.files, shapes, strict=True)]
        train_images, train_labels, test_images, test_labels = arrays
        return Dataset(
            name=spec.name,
            source=str(place),
            class_names=spec.class_names,
            train_images=train_images[..., np.newaxis],
            train_labels=train_labels.astype(np.int64),
            test_images=test_images[..., np.newaxis],
            test_labels=test_labels.astype(np.int64),
        )
    except ValueError as error:
        raise DataError(f"{place.folder} does not hold {spec.name}: {error}. {place.remedy}") from error


def read_checked(path: Path, expected: ExpectedFile, remedy: str) -> bytes:
    """The contents of a file, decompressed if it is a .gz file, once they are known to be the right ones.

    Raises:
        DataError: see `read_set`.
    """
    try:
        if not path.is_file():  # a folder, a broken link, or a pipe that would be waited for
            raise DataError(f"{path}: expected a regular file, found something else. {remedy}")
        with path.open("rb") as file:
            packed = file.read(expected.packed_limit + 1)
        return unpacked_and_checked(packed, expected)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    except ValueError as error:
        raise DataError(f"{path} is corrupt: {error}. {remedy}") from error


def unpacked_and_checked(packed: bytes, expected: ExpectedFile) -> bytes:
    """The contents of `packed`, the bytes of a whole file.

    Raises:
        ValueError: they are not the expected contents, or do not decompress.
    """
    if len(packed) > expected.packed_limit:
        raise ValueError(f"expected at most {expected.packed_limit:,} bytes, found more")
    contents = packed
    if expected.filename.endswith(".gz"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
                contents = file.read(expected.size + 1)  # one byte more shows a bomb without exploding it
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"expected a whole gzip file, found: {error}") from error
    if len(contents) != expected.size:
        found = f"{len(contents):,}" if len(contents) < expected.size else "more"
        raise ValueError(f"expected {expected.size:,} bytes of contents, found {found}")
    found = hashlib.sha256(contents).hexdigest()
    if found != expected.sha256:
        raise ValueError(f"expected contents with SHA-256 {expected.sha256}, found {found}")
    return contents


def parse_idx(contents: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A read-only uint8 array of this shape from an idx file, the format of the original MNIST.

    The header is two zero bytes, 8 for "unsigned byte", the number of dimensions, then each dimension as
    a big-endian 32-bit integer; the values follow.

    Raises:
        ValueError: the header says something else, or the values are too few or too many.
    """
    header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
    if contents[: len(header)] != header:
        raise ValueError(f"expected the idx header {header.hex()}, found {contents[: len(header)].hex()}")
    values = np.frombuffer(contents, np.uint8, offset=len(header))
    if values.size != np.prod(shape):
        raise ValueError(f"expected {np.prod(shape):,} values after the idx header, found {values.size:,}")
    return values.reshape(shape)


def parse_npz(contents: bytes, shapes: dict[str, tuple[int, ...]]) -> list[npt.NDArray[np.uint8]]:
    """The uint8 arrays of these names and shapes from an .npz file, in the order asked for.

    Only for contents whose SHA-256 is right: it is that check which keeps a zip bomb out.

    Raises:
        ValueError: an array is missing, pickled, or has another type or shape.
    """
    arrays = []
    try:
        npz = np.load(io.BytesIO(contents), allow_pickle=False)
        if not isinstance(npz, np.lib.npyio.NpzFile):
            raise ValueError(f"expected an .npz file with {', '.join(shapes)}, found a single array")
        with npz:
            for name, shape in shapes.items():
                array = npz[name]
                if array.dtype != np.uint8 or array.shape != shape:
                    raise ValueError(f"expected {name} as uint8 {shape}, found {array.dtype} {array.shape}")
                arrays.append(array)
    except (KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"expected an .npz file with {', '.join(shapes)}, found: {error}") from error
    return arrays
