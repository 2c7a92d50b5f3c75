"""Everything looked at, one thing after the other, while TensorFlow is tried in a process of its own."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfperf.doctor.findings import Finding, State
from tfperf.doctor.machine import examine_cpu, examine_machine
from tfperf.doctor.optional import examine_data, examine_engines, examine_horovod, examine_spark
from tfperf.doctor.python import examine_packages, examine_python
from tfperf.doctor.tensorflow import ProbeReport, examine_gpus, examine_tensorflow, probing

__all__ = ["Check", "examine", "examine_each"]


class Check(NamedTuple):
    """One thing to examine."""

    subject: str
    examine: Callable[[], list[Finding]]
    needed: bool
    """Whether tfperf cannot do without what is examined."""


def examine(
    tell: Callable[[str], None] = lambda _: None,
    tensorflow: contextlib.AbstractContextManager[Callable[[], ProbeReport]] | None = None,
) -> list[Finding]:
    """Look at the whole machine. Takes as long as TensorFlow needs to load; changes and downloads nothing.

    What fails to be examined is a finding too, so this raises nothing but what interrupts it.

    Args:
        tell: called with the name of each thing before it is looked at.
        tensorflow: what tries it while the rest is looked at; `probing()` where None is given.
    """
    with tensorflow or probing() as wait_for_report:
        before = [
            Check("Python", examine_python, needed=True),
            Check("packages", examine_packages, needed=True),
        ]
        meanwhile = [  # needed: what tells of the CPU and the machine is what every measurement starts with
            Check("CPU", examine_cpu, needed=True),
            Check("machine", examine_machine, needed=True),
            Check("engines", examine_engines, needed=False),
            Check("Horovod", examine_horovod, needed=False),
            Check("Spark", examine_spark, needed=False),
            Check("data", examine_data, needed=False),
        ]
        first, last = examine_each(before, tell), examine_each(meanwhile, tell)
        tell("TensorFlow")
        report = wait_for_report()
    tried = [
        Check("TensorFlow", lambda: examine_tensorflow(report), needed=True),
        Check("GPU", lambda: examine_gpus(report), needed=False),
    ]
    return [*first, *examine_each(tried, tell), *last]


def examine_each(checks: Sequence[Check], tell: Callable[[str], None]) -> list[Finding]:
    """The findings of some checks; one that itself fails gives a finding that says so."""
    findings = []
    for check in checks:
        tell(check.subject)
        try:
            findings += check.examine()
        except Exception as error:  # a doctor is called where things are broken
            state = State.UNFIT if check.needed else State.NOTE
            findings.append(Finding(check.subject, state, f"cannot be examined: {type(error).__name__}: {error}"))
    return findings
