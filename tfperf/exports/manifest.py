"""What written files say of themselves: the digest of each of them, and what they must answer."""

import hashlib
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from pydantic import Field, ValidationError

from tfperf.errors import ExportError
from tfperf.exports.signature import Signature
from tfperf.measure.value import Count, Name, Text, Value

__all__ = [
    "EXTRA",
    "MANIFEST",
    "REFERENCE",
    "Digest",
    "FileDigest",
    "Manifest",
    "digests_of",
    "encoded",
    "faults_of",
    "fingerprint",
    "listed",
    "paths_of",
    "read_manifest",
]

EXTRA = "assets.extra"
"""The folder of a SavedModel for files that its graph does not use; servers leave it alone."""

MANIFEST = f"{EXTRA}/tfperf_manifest.json"
REFERENCE = f"{EXTRA}/tfperf_reference.npz"

Digest = str


class FileDigest(Value):
    """A file of an export or a deployment."""

    path: Text
    """From the folder of all of them, with slashes."""
    bytes: Count
    sha256: Digest = Field(pattern="^[0-9a-f]{64}$")


class Manifest(Value):
    """What `assets.extra/tfperf_manifest.json` holds. Version 1 is the first."""

    format: Literal[1]
    name: Name
    version: int = Field(ge=1)
    made: Text = Field(description="the time, in UTC")
    made_with: dict[str, str] = Field(description="package -> version")
    signature: Signature
    tensors: dict[str, str] = Field(description="input or output -> tensor of the graph, for the C interface")
    files: tuple[FileDigest, ...]
    fingerprint: Digest = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the list of files")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of a version's folder.

        Raises:
            ExportError: it is missing, or not what was written.
        """
        try:
            return read_manifest(folder / MANIFEST, cls)
        except OSError as error:
            raise ExportError(f"expected an export of tfperf in {folder}: {MANIFEST}: {error.strerror}") from error

    def encoded(self) -> bytes:
        """The bytes of the file."""
        return encoded(self)

    def faults(self, folder: Path) -> Iterator[str]:
        """What of the folder is not as it was written, in words."""
        return faults_of(folder, self.files, MANIFEST)


Kind = TypeVar("Kind", bound=Value)


def read_manifest(path: Path, kind: type[Kind]) -> Kind:
    """A manifest, if it is as it was written.

    Args:
        kind: what it holds: among others `files`, and their `fingerprint`.

    Raises:
        OSError: it cannot be read.
        ExportError: it is altered.
    """
    written = path.read_bytes()
    try:
        manifest: Any = kind.model_validate_json(written, strict=True)
    except ValidationError as error:
        raise ExportError(f"{path} is altered: it is not as it was written") from error
    if encoded(manifest) != written or manifest.fingerprint != fingerprint(manifest.files):
        raise ExportError(f"{path} is altered: it is not as it was written")
    return cast("Kind", manifest)


def encoded(manifest: Value) -> bytes:
    """The bytes of a manifest's file."""
    return manifest.model_dump_json(indent=1).encode()


def faults_of(folder: Path, files: Sequence[FileDigest], manifest: str) -> Iterator[str]:
    """What of a folder is not as a manifest lists it, in words.

    Args:
        files: what the manifest lists.
        manifest: path of the manifest itself.

    Raises:
        OSError: the folder cannot be read.
    """
    known = {file.path: file for file in files}
    there = {path: folder / path for path in paths_of(folder, manifest)} if folder.is_dir() else {}
    for path, file in known.items():
        place = there.get(path)
        if place is None:
            yield f"{path} is missing"
        elif not place.resolve().is_relative_to(folder.resolve()):
            yield f"{path} is a link out of the folder"
        elif not stat.S_ISREG(place.stat().st_mode):
            yield f"{path} is no file"
        elif place.stat().st_size != file.bytes:
            yield f"{path} has {place.stat().st_size:,} bytes, not {file.bytes:,}"
        elif sha256(place) != file.sha256:
            yield f"{path} is altered: its SHA-256 is another"
    for path in sorted(set(there) - set(known)):
        yield f"{path} was not exported"


def listed(faults: Sequence[str]) -> str:
    """The first of many faults in one line."""
    more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
    return f"{'; '.join(faults[:3])}{more}"


def digests_of(folder: Path, manifest: str = MANIFEST) -> tuple[FileDigest, ...]:
    """The files of a folder, but for the manifest, in order."""
    return tuple(
        FileDigest(path=path, bytes=(folder / path).stat().st_size, sha256=sha256(folder / path))
        for path in paths_of(folder, manifest)
    )


def paths_of(folder: Path, manifest: str = MANIFEST) -> list[str]:
    """Paths of the files and links from the folder, but for the manifest, in order."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    paths = (path.relative_to(folder).as_posix() for path in found)
    return sorted(path for path in paths if path != manifest)


def fingerprint(files: tuple[FileDigest, ...]) -> str:
    """SHA-256 of the list of files with their digests: the same where all files are."""
    listed = "".join(f"{file.sha256}  {file.path}\n" for file in files)  # as sha256sum prints it
    return hashlib.sha256(listed.encode()).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
