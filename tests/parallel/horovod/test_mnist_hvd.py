"""The recipe `mnist_hvd` on two ranks, by either launcher: equal weights, and each of the source's mistakes counted."""

import re
import sys
from pathlib import Path

import pytest

from tfperf.exports import verify
from tfperf.measure.results import read_result

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "mnist_hvd.py"
DEADLINE = 240
"""Seconds after which a launch is ended; it means a hang, not a speed."""


@pytest.mark.parametrize("launcher", ["tfperf launch", "horovodrun"])
def test_two_ranks_train_one_net_and_count_the_mistakes(launch_ranks, tmp_path, launcher):
    command = [sys.executable, str(RECIPE), "--quick", "--data", "digits", "--batch", "32"]
    env = {"COLUMNS": "200"}
    returncode, output = launch_ranks(command, folder=tmp_path, launcher=launcher, deadline=DEADLINE, env=env)
    assert returncode == 0, output
    result = read_result(tmp_path / "results" / "mnist_hvd.json")
    assert [agreement.candidate for agreement in result.agreements] == [
        "4 steps of 2 ranks, Compression.fp16",
        "4 steps of 2 ranks, Compression.none",
    ]
    assert result.agreements[0].relative_error > result.agreements[1].relative_error  # it did compress
    assert [m.name for m in result.comparisons[0].measurements] == ["one rank", "all ranks"]
    facts = result.facts
    assert facts["distance of two ranks without a broadcast, at the end by that at the start"] == pytest.approx(1)
    wrong = facts["test accuracy at the rate of 64 ranks whose batch was divided"]
    assert wrong < 0.3 < facts["test accuracy at the rate of one process"]
    assert facts["test accuracy"] > 0.5  # ten classes, so chance is 0.1
    assert "so an epoch takes 89 steps. With shares it takes 22." in " ".join(result.meaning)  # of 1437 digits
    digests = re.findall(r"\b[0-9a-f]{16}\b", output)
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert output.count("of the test images are right; all ranks hold the same weights") == 1, "rank 0 alone prints"
    verify(tmp_path / "saved_models" / "mnist_hvd" / "1")  # raises an error if it is not whole


def test_a_batch_that_ranks_cannot_share_is_refused_in_one_line(launch_ranks, tmp_path):
    command = [sys.executable, str(RECIPE), "--data", "digits", "--batch", "1000"]
    returncode, output = launch_ranks(command, folder=tmp_path, launcher="tfperf launch", deadline=DEADLINE)
    assert returncode == 2, output
    assert "mnist_hvd: expected --batch to be from 2 to 718 with 2 ranks. Received: --batch 1000" in output
    assert "Traceback" not in output
    assert not (tmp_path / "results").exists()
