"""The time of an explanation: stages run while there is some, and Ctrl-C ends them all."""

import math
import time

import pytest

from tfperf.explaining.budget import Budget


def interrupt():
    raise KeyboardInterrupt


def test_a_stage_runs_while_there_is_time():
    budget = Budget(100)
    assert budget.run("batch 64", 10, lambda: 1, 0) == 1
    assert budget.run("XLA", 95, lambda: 1, 0) == 0  # a part is reserved
    (doubt,) = budget.doubts
    assert doubt.words == "the time limit was too short: left out XLA"


def test_without_a_limit_everything_runs():
    budget = Budget()
    assert budget.run("XLA", 1e9, lambda: 1, 0) == 1
    assert budget.until(0.5) == math.inf
    assert budget.doubts == ()


def test_ctrl_c_ends_a_stage_and_all_that_follow():
    budget = Budget(100)
    assert budget.run("batch 64", 1, interrupt, 0) == 0
    assert budget.run("XLA", 1, lambda: 1, 0) == 0
    assert budget.until(0.9) == -math.inf
    (doubt,) = budget.doubts
    assert doubt.words == "interrupted: left out batch 64, XLA"


def test_ctrl_c_in_what_may_end_early_ends_what_follows():
    budget = Budget(100)
    with budget.until_interrupted():
        interrupt()
    assert budget.interrupted
    assert budget.run("XLA", 1, lambda: 1, 0) == 0


def test_a_stage_has_some_seconds_though_others_took_long():
    budget = Budget(100)
    now = time.monotonic()
    assert budget.until(0.5, at_least=20) == pytest.approx(now + 50, abs=1)
    assert budget.until(0.0, at_least=20) == pytest.approx(now + 20, abs=1)
    assert budget.until(0.0, at_least=200) == pytest.approx(now + 85, abs=1)  # not beyond the end, with its reserve
