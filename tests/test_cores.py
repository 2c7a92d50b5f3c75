"""The cores that this process may use."""

import os
from pathlib import Path

import pytest

from tfperf.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 4), ("150000 100000", 2), ("900000 100000", 4), ("1000 100000", 1), (None, 4)]
)
def test_cores_are_those_of_the_mask_and_the_quota(monkeypatch, quota, cores):
    def read_text(_, **__):
        if quota is None:
            raise FileNotFoundError
        return f"{quota}\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(Path, "read_text", read_text)
    assert usable_cores() == cores
