"""Sizes of what is convolved, and where TensorFlow puts zeros beside images."""

from typing import Any

__all__ = ["are_sizes_plain", "convolved_side"]


def are_sizes_plain(inputs: Any, kernel: Any, padding: str) -> bool:
    """Whether sizes of images and of a kernel are known, are not 0, and fit each other: one group, in every channel.

    Args:
        inputs, kernel: tensors of any shapes.
        padding: of any word.
    """
    if inputs.shape.rank != 4 or None in inputs.shape[1:] or not kernel.shape.is_fully_defined():
        return False
    whole = 0 not in (*kernel.shape, *inputs.shape[1:]) and inputs.shape[3] == kernel.shape[2]  # else it has groups
    fits = all(side >= along for side, along in zip(inputs.shape[1:3], kernel.shape[:2], strict=True))
    return whole and (padding.upper() == "SAME" or (padding.upper() == "VALID" and fits))


def convolved_side(side: int, taps: int, stride: int, padding: str) -> tuple[int, int]:
    """How many numbers a convolution gives along an axis, and how many zeros it reads before the first.

    Args:
        side: of the images along the axis.
        taps: places of the kernel along it.
        stride: along it.
        padding: "same" or "valid", in any case.
    """
    made = -(-side // stride) if padding.upper() == "SAME" else (side - taps) // stride + 1
    return made, max((made - 1) * stride + taps - side, 0) // 2
