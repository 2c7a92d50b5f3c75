"""Where TensorFlow puts zeros beside images."""

__all__ = ["convolved_side"]


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
