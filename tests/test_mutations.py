"""Files that are damaged in every way: read, or refused by one line, and nothing else."""

import random
import sys
import warnings

import pytest

from tests import mutations

# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

KINDS = ("result", "outcome", "manifest", "plan", "arrays", "net")

NUMBER = 40
"""Files of each kind; benchmarks/faults.py reads 500."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return mutations.good_files(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_by_one_line(good, tmp_path, kind):
    warnings.filterwarnings("ignore", "Duplicate name", UserWarning)  # of the zip files that are made here
    whole, generator = good[kind].read_bytes(), random.Random(25)
    contents = [whole, *(mutations.mutated(whole, kind, generator) for _ in range(NUMBER))]
    readings = mutations.read_all(kind, good[kind], contents, tmp_path, seconds=60.0)
    assert readings[0].ended == "read", readings[0]
    assert [reading for reading in readings if reading.ended not in ("read", "refused")] == []
    assert any(reading.ended == "refused" for reading in readings)
    assert good[kind].read_bytes() == whole


def test_the_same_seed_damages_alike():
    whole = b'{"a": {"b": [1, 2]}, "c": "d"}'
    one, two = ([mutations.mutated(whole, "result", random.Random(seed)) for seed in range(50)] for _ in "ab")
    assert one == two
    assert len(set(one)) > 30


def test_what_is_damaged_was_not_measured(tmp_path):
    one, two = (mutations.good_measurements(tmp_path / name) for name in "ab")
    assert {kind: file.read_bytes() for kind, file in one.items()} == {
        kind: file.read_bytes() for kind, file in two.items()
    }


@pytest.mark.parametrize(
    ("read", "ended"),
    [
        (lambda: {}["x"], "traceback"),
        (lambda: sys.exit(2), "not one line"),
        (lambda: print("a\nb", file=sys.stderr) or sys.exit(2), "not one line"),
        (lambda: print("a", file=sys.stderr) or sys.exit(2), "refused"),
        (lambda: sys.exit(1), "read"),
        (lambda: sys.exit(7), "exit code 7"),
        (lambda: None, "read"),
    ],
    ids=range(7),
)
def test_what_a_reading_ends_with_is_told(read, ended):
    assert mutations._ended(read)[0] == ended
