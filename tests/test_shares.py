"""`make test` runs a share of the test files: each file is in one of them, and what is to run every time in all."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from tests.fixtures.shares import EVERY_TIME, Share, share_of

TESTS = Path(__file__).parent
FILES = sorted(file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_each_file_is_in_one_part_and_some_are_in_all(parts):
    for file in FILES:
        there = [Share(number, parts).has(file) for number in range(1, parts + 1)]
        assert sum(there) == (parts if file in EVERY_TIME else 1)


def test_parts_are_about_as_large():
    counts = [sum(Share(number, 4).has(file) for file in FILES) for number in (1, 2, 3, 4)]
    assert max(counts) < 2 * min(counts)


def test_what_runs_every_time_is_there():
    assert set(FILES) >= EVERY_TIME


def test_a_part_and_their_number_are_read():
    assert share_of("2/4") == Share(2, 4)


@pytest.mark.parametrize("text", ["", "/4", "2", "0/4", "5/4", "-1/4", "1/0", "a/b", "1.5/4"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="expected a part and their number"):
        share_of(text)
