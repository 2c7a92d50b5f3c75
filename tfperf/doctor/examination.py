"""Everything looked at, one thing after the other, while TensorFlow is tried in a process of its own."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfperf.doctor import cpu, data, devices, engines, horovod, machine, packages, python, spark, tensorflow
from tfperf.doctor.finding import Finding, State
from tfperf.doctor.trial import Trial

__all__ = ["Look", "examine", "taken"]


class Look(NamedTuple):
    """One room of the machine to look into."""

    subject: str
    take: Callable[[], list[Finding]]
    needed: bool
    """Whether tfperf cannot do without what is looked at."""


def examine(tell: Callable[[str], None] = lambda _: None, trial: Trial | None = None) -> list[Finding]:
    """Look at the whole machine. Takes as long as TensorFlow needs to load; changes and downloads nothing.

    What fails to be examined is a finding too, so this raises nothing but what interrupts it.

    Args:
        tell: called with the name of each thing before it is looked at.
        trial: of TensorFlow; that of this Python where None is given.
    """
    with trial or Trial() as trial_running:
        before = [
            Look("Python", python.look, needed=True),
            Look("packages", packages.look, needed=True),
        ]
        meanwhile = [  # needed: what tells of the CPU and the machine is what every measurement starts with
            Look("CPU", cpu.look, needed=True),
            Look("machine", machine.look, needed=True),
            Look("engines", engines.look, needed=False),
            Look("Horovod", horovod.look, needed=False),
            Look("Spark", spark.look, needed=False),
            Look("data", data.look, needed=False),
        ]
        first, last = taken(before, tell), taken(meanwhile, tell)
        tell("TensorFlow")
        report = trial_running.report()
    tried = [
        Look("TensorFlow", lambda: tensorflow.look(report), needed=True),
        Look("GPU", lambda: devices.look(report), needed=False),
    ]
    return [*first, *taken(tried, tell), *last]


def taken(looks: Sequence[Look], tell: Callable[[str], None]) -> list[Finding]:
    """The findings of some looks; one that itself fails gives a finding that says so."""
    findings = []
    for look in looks:
        tell(look.subject)
        try:
            findings += look.take()
        except Exception as error:  # a doctor is called where things are broken
            state = State.UNFIT if look.needed else State.NOTE
            findings.append(Finding(look.subject, state, f"cannot be examined: {type(error).__name__}: {error}"))
    return findings
