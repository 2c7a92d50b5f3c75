"""Made-up trials and comparisons."""

import itertools

import numpy as np
import pytest

from tfperf.engines.plan import Plan
from tfperf.measure import Comparison, Stop
from tfperf.measure.comparison import paired
from tfperf.measure.memory import MemoryPeak
from tfperf.search.question import Question
from tfperf.trials.trial import Status, Trial

GIBIBYTE = 2**30


@pytest.fixture
def asked():
    """A function that makes a question."""

    def asked(**fields):
        return Question(**{"threads": (1,), "engines": ("honest", "equal"), "memory_limit": GIBIBYTE} | fields)

    return asked


@pytest.fixture
def tried(measured):
    """A function that makes a trial of an engine, as if it had taken these seconds a call."""

    def tried(engine, seconds=1e-3, *, batch=1, size=1000, memory=2**20, status=Status.RAN, **parts):
        plan = engine if isinstance(engine, Plan) else Plan(engine=engine, **parts)
        trial = Trial(plan=plan, batch=batch, status=status)
        if status is not Status.RAN:
            return trial.model_copy(update={"reason": "made up"})
        peak = MemoryPeak(resident=2**28 + memory, resident_before=2**28, device=None, of_whole_process=False)
        found = measured(trial.name, [seconds] * 20, memory=peak)
        return trial.model_copy(update={"size": size, "measurement": found})

    return tried


@pytest.fixture
def compared(measured):
    """A function that compares by name seconds a call, each with noise that the others do not share."""

    def compared(seconds, *, spread=0.002, rounds=200, seed=0):
        generator = np.random.default_rng(seed)
        taken = {name: value * generator.normal(1, spread, rounds) for name, value in seconds.items()}
        pairs = itertools.combinations(taken, 2)
        return Comparison(
            measurements=tuple(measured(name, samples) for name, samples in taken.items()),
            ratios=tuple(paired(one, other, taken[one], taken[other], 0.01) for one, other in pairs),
            rounds=rounds,
            margin=0.01,
            stopped=Stop.PRECISION,
        )

    return compared
