"""The CPU's instructions, and what they mean for each number format."""

from typing import TYPE_CHECKING, NamedTuple

from tfperf.doctor.finding import Finding, State

if TYPE_CHECKING:
    from tfperf.measure import Environment

__all__ = ["FORMATS", "look"]


class Format(NamedTuple):
    """A number format, and what the instructions that compute in it mean for it."""

    name: str  # in tfperf.measure.environment.ARITHMETIC
    with_them: str
    without: str


_MEASURE = "what it buys, measure: tfperf run mnist_mixed_mirrored"
_WITH = f"instructions for it; {_MEASURE}"
_WITHOUT = f"the CPU has no instructions for it, so kernels convert to float32 and back; {_MEASURE}"

FORMATS = (
    Format("float32", "vector instructions", "no vector instructions known here"),
    Format("bfloat16", _WITH, _WITHOUT),
    Format("float16", _WITH, _WITHOUT),
    Format(
        "int8",
        "dot products of 8-bit integers",
        "the CPU has no dot products of 8-bit integers, so a quantised net may be no faster",
    ),
)
"""In the order in which they are told."""


def look(environment: "Environment | None" = None) -> list[Finding]:
    """The CPU's name, and one finding for each number format.

    Args:
        environment: what the machine is; this one where None is given.
    """
    if environment is None:
        from tfperf.measure import Environment

        environment = Environment.here()
    where = ", in a virtual machine" if environment.hypervisor else ""
    name = Finding("CPU", State.OK, f"{environment.cpu}{where}")
    if not environment.cpu_features:
        return [name, Finding("CPU instructions", State.NOTE, "the system does not tell which ones the CPU has")]
    return [name, *(_examined(format_, environment) for format_ in FORMATS)]


def _examined(format_: Format, environment: "Environment") -> Finding:
    from tfperf.measure.environment import ARITHMETIC

    if has := environment.instructions_for(format_.name):
        return Finding(f"CPU {format_.name}", State.OK, f"{', '.join(has)}: {format_.with_them}")
    lacks = f"none of {', '.join(ARITHMETIC[format_.name])}"
    return Finding(f"CPU {format_.name}", State.NOTE, f"{lacks}: {format_.without}")
