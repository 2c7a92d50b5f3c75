"""What an export says of itself: the digest of each of its files, and what it must answer."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

from tfperf.errors import ExportError
from tfperf.exports.signature import Signature
from tfperf.measure.value import Count, Name, Text, Value

__all__ = ["EXTRA", "MANIFEST", "REFERENCE", "FileDigest", "Manifest"]

EXTRA = "assets.extra"
"""The folder of a SavedModel for files that its graph does not use; servers leave it alone."""

MANIFEST = f"{EXTRA}/tfperf_manifest.json"
REFERENCE = f"{EXTRA}/tfperf_reference.npz"

Digest = str


class FileDigest(Value):
    """A file of the export."""

    path: Text
    """From the version's folder, with slashes."""
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
        path = folder / MANIFEST
        try:
            written = path.read_bytes()
            manifest = cls.model_validate_json(written, strict=True)
        except OSError as error:
            raise ExportError(f"expected an export of tfperf in {folder}: {MANIFEST}: {error.strerror}") from error
        except ValidationError as error:
            raise ExportError(f"{path} is altered: it is not as it was written") from error
        if manifest.encoded() != written or manifest.fingerprint != fingerprint(manifest.files):
            raise ExportError(f"{path} is altered: it is not as it was written")
        return manifest

    def encoded(self) -> bytes:
        """The bytes of the file."""
        return self.model_dump_json(indent=1).encode()

    def faults(self, folder: Path) -> Iterator[str]:
        """What of the folder is not as it was written, in words."""
        known = {file.path: file for file in self.files}
        there = {path: folder / path for path in paths_of(folder)} if folder.is_dir() else {}
        for path, file in known.items():
            if path not in there:
                yield f"{path} is missing"
            elif there[path].stat().st_size != file.bytes:
                yield f"{path} has {there[path].stat().st_size:,} bytes, not {file.bytes:,}"
            elif sha256(there[path]) != file.sha256:
                yield f"{path} is altered: its SHA-256 is another"
        for path in sorted(set(there) - set(known)):
            yield f"{path} was not exported"


def digests_of(folder: Path) -> tuple[FileDigest, ...]:
    """The files of a folder, but for the manifest, in order."""
    return tuple(
        FileDigest(path=path, bytes=(folder / path).stat().st_size, sha256=sha256(folder / path))
        for path in paths_of(folder)
    )


def paths_of(folder: Path) -> list[str]:
    """Paths of the files from the folder, but for the manifest, in order."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(path for path in paths if path != MANIFEST)


def fingerprint(files: tuple[FileDigest, ...]) -> str:
    """SHA-256 of the list of files with their digests: the same where all files are."""
    listed = "".join(f"{file.sha256}  {file.path}\n" for file in files)  # as sha256sum prints it
    return hashlib.sha256(listed.encode()).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
