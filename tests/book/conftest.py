"""The book's sources in a folder of their own, where they can be changed, and its extension on the path."""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

MADE = ("_build", "recipes", "concordance", "__pycache__", "api", "command_line.md", "*.mo")
"""What is made of the sources, and is not kept."""


def copy_docs(folder):
    """Copy the book's sources, beside links to what they include."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*MADE))
    for name in ("recipes", "benchmarks", "saved_models"):
        (folder / name).symlink_to(ROOT / name)
    return folder / "docs"


@pytest.fixture
def docs(tmp_path):
    """A copy of docs/ that a test may change."""
    return copy_docs(tmp_path)


@pytest.fixture(scope="session")
def whole_docs(tmp_path_factory):
    """A copy of docs/ that stays as it is, to be built whole."""
    return copy_docs(tmp_path_factory.mktemp("book"))
