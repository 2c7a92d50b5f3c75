"""A converted net on disk."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

__all__ = ["PROOF", "TENSORS", "bytes_in", "read_proof", "write_proof"]

PROOF = "proof.json"
"""What the conversion showed of the plan; beside what the engine loads, and no part of it."""

TENSORS = "tensors.json"
"""Beside a graph: input or output -> the tensor that holds it, for those who load it without TensorFlow's Python."""


def bytes_in(folder: Path) -> int:
    """Size of what the engine loads."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != PROOF)


def read_proof(folder: Path) -> dict[str, str]:
    """What the conversion showed, by what was asked for."""
    return cast("dict[str, str]", json.loads((folder / PROOF).read_text(encoding="utf-8")))


def write_proof(folder: Path, proof: Mapping[str, str]) -> None:
    """Keep what the conversion showed."""
    (folder / PROOF).write_text(json.dumps(proof), encoding="utf-8")
