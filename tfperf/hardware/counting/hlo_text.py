"""XLA's own text of a program: its instructions, with their shapes and what of TensorFlow they come from."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from tfperf.errors import HardwareError

__all__ = ["Array", "Instruction", "Program", "read_program"]

BITS: Mapping[str, int] = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
"""Types whose names do not end in their size."""

ARRAY = re.compile(r"\b(pred|token|opaque|bf16|c64|c128|[suf]\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(
    r"^(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = "
    r"(?P<form>\((?:[^()]|\([^()]*\))*\)|\S+) (?P<opcode>[\w\-]+)\((?P<rest>.*)$"
)
OPERAND = re.compile(r"%([\w.\-]+)")
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


class Array(NamedTuple):
    """A type and a shape."""

    type: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How large, padded to whole bytes each."""
        bits = BITS[self.type] if self.type in BITS else int(re.sub(r"\D.*", "", self.type[1:]))
        return self.elements * max(8, bits) // 8 if bits else 0

    @property
    def is_floating(self) -> bool:
        """Whether they are floating-point numbers."""
        return self.type.startswith(("f", "bf", "c"))


class Instruction(NamedTuple):
    """One line of a program."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    """What it gives: one, or those of a tuple."""
    operands: tuple[str, ...]
    """Names of instructions of the same computation."""
    attributes: str
    """What is behind the operands, without the metadata."""
    op_name: str
    """TensorFlow's operation that it comes from; empty: none."""
    is_root: bool

    @property
    def bytes(self) -> int:
        """The bytes of all its outputs."""
        return sum(array.bytes for array in self.arrays)

    def attribute(self, name: str) -> str | None:
        """The text of an attribute, as "0_1" or "{1}"; None: it has none of this name."""
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return found[1] if found else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """The numbers of an attribute, as (1,) of "{1}"; () where there are none."""
        return tuple(int(one) for one in re.findall(r"\d+", self.attribute(name) or ""))


class Program(NamedTuple):
    """The computations of a module: name -> its instructions, in order."""

    entry: str
    computations: Mapping[str, tuple[Instruction, ...]]


def read_program(text: str) -> Program:
    """Read what `experimental_get_compiler_ir` gives.

    Args:
        text: of stage "hlo" or "optimized_hlo".

    Raises:
        HardwareError: it is no such text.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = current = ""
    for line in (re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()):
        if (head := HEAD.match(line)) and " = " not in line.split("(")[0] and not line.startswith("HloModule"):
            current = head[2]
            entry = current if head[1] else entry
            computations[current] = []
        elif current and (found := INSTRUCTION.match(line)):
            computations[current].append(_instruction(found))
    if not entry:
        raise HardwareError(f"expected the text of an XLA program, with an ENTRY. Received: {text[:60]!r}")
    return Program(entry, {name: tuple(found) for name, found in computations.items()})


def _instruction(found: re.Match[str]) -> Instruction:
    operands, attributes = _split(found["rest"])
    metadata = OP_NAME.search(attributes)
    return Instruction(
        name=found["name"],
        opcode=found["opcode"],
        arrays=tuple(
            Array(kind, tuple(int(one) for one in sizes.split(",") if one))
            for kind, sizes in ARRAY.findall(found["form"])
        ),
        operands=tuple(OPERAND.findall(operands)),
        attributes=attributes.split(", metadata={")[0],
        op_name=metadata[1] if metadata else "",
        is_root=found["root"] is not None,
    )


def _split(rest: str) -> tuple[str, str]:
    """What stands before the bracket that closes the operands, and behind it."""
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter in "({") - (letter in ")}")
        if depth == 0:
            return rest[:place], rest[place + 1 :]
    return rest, ""
