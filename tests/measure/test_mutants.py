"""Deliberate mistakes in the measuring code, each of which its test must catch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_a_mutant_is_caught(mutant_name: str, mutants) -> None:
    if mutants.VARIABLE in os.environ:
        pytest.skip("one mutant at a time")
    test = HERE / mutants.MUTANTS[mutant_name].caught_by
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(
        command, env=os.environ | {mutants.VARIABLE: mutant_name}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout  # 1: it ran and failed; without the mutant it passes, or this run is red
    assert not re.search(r"\b(Attribute|Import|Name|Type)Error\b", done.stdout), done.stdout  # the mutant's own


def test_every_mutant_changes_something(mutants) -> None:
    for mutant in mutants.MUTANTS.values():
        with pytest.MonkeyPatch.context() as context:
            mutant.apply(context)
            assert context._setattr
