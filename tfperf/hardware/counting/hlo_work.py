"""Arithmetic and traffic of a net, counted in the program that TensorFlow hands to XLA."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfperf.errors import HardwareError
from tfperf.hardware.counting.hlo_text import Array, Instruction, Program
from tfperf.hardware.counting.work import Work

__all__ = ["hlo_work"]

VIEWS = frozenset({"bitcast", "broadcast", "get-tuple-element", "opt-barrier", "reshape", "tuple"})
"""Opcodes that move nothing: who takes what they give takes what they took."""

SOURCES = frozenset({"constant", "iota", "parameter"})

LOOPS = frozenset({"conditional", "while"})

PARTS = frozenset({"dynamic-slice", "gather", "slice"})
"""Opcodes that read only as much as they give."""

PRODUCTS = frozenset({"convolution", "dot"})

ELEMENTWISE = frozenset(
    {
        *("abs", "add", "atan2", "cbrt", "ceil", "cosine", "divide", "erf", "exponential", "exponential-minus-one"),
        *("floor", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "power", "remainder"),
        *("rsqrt", "sign", "sine", "sqrt", "subtract", "tan", "tanh"),
    }
)


class _HloStep(NamedTuple):
    """An instruction, and those whose answers it takes."""

    instruction: Instruction
    takes: tuple["_HloStep", ...]

    @property
    def moves(self) -> bool:
        """Whether it computes or moves something."""
        return self.instruction.opcode not in VIEWS | SOURCES

    @property
    def seen_through(self) -> Iterator["_HloStep"]:
        """What it takes, behind all views."""
        for step in self.takes:
            if step.instruction.opcode in VIEWS:
                yield from step.seen_through
            else:
                yield step


def hlo_work(program: Program) -> list[Work]:
    """What each of TensorFlow's operations computes and moves, from the instructions that were made of it.

    Instructions with the same operation in their metadata are one: what passes from one operation to another is written
    and read, what stays within is not.

    Args:
        program: of stage "hlo", before XLA optimizes it. Of stage "optimized_hlo" each kernel is one, and its bytes are
            counted, but not the floating-point operations inside of a fusion.

    Raises:
        HardwareError: it has loops or branches, whose turns only a run can tell.
    """
    operations: dict[str, list[_HloStep]] = {}
    steps = list(_steps(program))
    for step in steps:
        operations.setdefault(_owner(step), []).append(step)
    given: dict[int, _HloStep] = {}  # what leaves the operation that made it
    read: dict[str, dict[int, int]] = {name: {} for name in operations}
    for step in steps:
        for taken in step.seen_through if step.moves else ():
            if _owner(taken) != _owner(step):
                given[id(taken)] = taken
                size = taken.instruction.bytes
                part = min(step.instruction.bytes, size) if step.instruction.opcode in PARTS else size
                read[_owner(step)][id(taken)] = part
        if step.instruction.is_root:
            given |= {id(one): one for one in ([step] if step.moves else step.seen_through)}
    written = dict.fromkeys(operations, 0)
    for step in given.values():
        written[_owner(step)] += step.instruction.bytes if step.moves else 0
    return [
        _work_of(name, [step for step in made if step.moves], sum(read[name].values()), written[name])
        for name, made in operations.items()
        if any(step.moves for step in made)
    ]


def _steps(program: Program, computation: str | None = None) -> Iterator[_HloStep]:
    """The instructions that run, in order; those of a function that is called come before its call.

    There its parameters are sources, and so is the call: the function's last step has written what it gives.
    """
    known: dict[str, _HloStep] = {}
    for instruction in _needed(program.computations[computation or program.entry]):
        if instruction.opcode in LOOPS:
            where = instruction.op_name or instruction.name
            raise HardwareError(f"expected a net without loops and branches, whose work can be counted; {where} is one")
        if instruction.opcode == "call":
            yield from _steps(program, (instruction.attribute("to_apply") or "").lstrip("%"))
            step = _HloStep(instruction._replace(opcode="parameter"), ())
        else:
            step = _HloStep(instruction, tuple(known[name] for name in instruction.operands))
        known[instruction.name] = step
        yield step


def _needed(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Those that the root asks for."""
    needed = {instruction.name for instruction in instructions if instruction.is_root}
    for instruction in reversed(instructions):  # each comes behind what it takes
        if instruction.name in needed:
            needed |= set(instruction.operands)
    return [instruction for instruction in instructions if instruction.name in needed]


def _owner(step: _HloStep) -> str:
    """The operation that an instruction was made of."""
    return step.instruction.op_name or step.instruction.name


def _work_of(name: str, steps: list[_HloStep], read: int, written: int) -> Work:
    flops = [_flops(step) for step in steps]
    products = sum(one for step, one in zip(steps, flops, strict=True) if step.instruction.opcode in PRODUCTS)
    return Work(name=name[-200:], flops=sum(flops), products=products, read=read, written=written, operations=1)


def _flops(step: _HloStep) -> int:
    """Count as `operation_flops.flops_of` does."""
    instruction = step.instruction
    given, taken = instruction.arrays[0], [one.instruction.arrays[0] for one in step.takes if one.instruction.arrays]
    if instruction.opcode == "dot":
        summed = (taken[0].shape[axis] for axis in instruction.numbers("lhs_contracting_dims"))
        return 2 * given.elements * math.prod(summed)
    if instruction.opcode == "convolution":
        return _flops_of_convolution(instruction, taken[0], taken[1])
    if not given.is_floating:
        return 0
    if instruction.opcode in ELEMENTWISE:
        return given.elements
    if instruction.opcode == "reduce":
        return sum(array.elements for array in taken[: len(taken) // 2])  # behind them come what they begin with
    if instruction.opcode == "reduce-window":
        return given.elements * math.prod(_window(instruction))
    if instruction.opcode == "select-and-scatter":
        return taken[1].elements * math.prod(_window(instruction))
    if instruction.opcode == "batch-norm-inference":
        return 2 * given.elements
    return 0


def _flops_of_convolution(instruction: Instruction, left: Array, right: Array) -> int:
    """One multiply-add for each position of the forward answer and each weight that it sees.

    In each direction a weight meets each position of the smaller side once: of the answer in a convolution and in the
    gradient of its weights, of what is taken in the gradient of its inputs, whose answer is the larger.
    """
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels") or "")
    if labels is None:
        raise HardwareError(f"expected a convolution with the names of its dimensions: {instruction.name}")
    of_left, of_right, of_given = (
        dict(zip(names, array.shape, strict=True))
        for names, array in zip(labels.groups(), (left, right, instruction.arrays[0]), strict=True)
    )
    groups = (instruction.numbers("feature_group_count") or (1,))[0]
    batch_groups = (instruction.numbers("batch_group_count") or (1,))[0]
    meetings = [min(of_left[one], of_given[one]) * of_right[one] for one in of_given if one.isdigit()]
    terms = of_left["f"] // groups * (of_left["b"] // batch_groups)
    return int(2 * terms * of_given["f"] * math.prod(meetings))


def _window(instruction: Instruction) -> tuple[int, ...]:
    found = re.search(r"size=([\dx]+)", instruction.attribute("window") or "")
    return tuple(int(one) for one in found[1].split("x")) if found else (1,)
