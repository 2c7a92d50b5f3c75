"""Which layer of a net an operation belongs to."""

import re
from collections.abc import Iterable, Sequence

from tfperf.hardware.counting.work import Work

__all__ = ["OUTSIDE", "by_layer", "layer_of"]

OUTSIDE = "outside the layers"
"""Where operations are that no layer has made, as a loss."""


def layer_of(operation: str, layers: Iterable[str]) -> str | None:
    """The layer whose name is in the path of an operation's; None: none.

    Args:
        operation: as "gradient_tape/mlp_1/hidden_1_1/MatMul". A scope that a graph has already is numbered.
        layers: names, of one level of the net.
    """
    known = set(layers)
    for part in operation.split("/"):
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in known:
                return name
    return None


def by_layer(operations: Sequence[Work], layers: Sequence[str]) -> list[Work]:
    """What each layer computes and moves, in the order of the layers; what is outside comes last.

    Args:
        operations: of `graph_work` or `hlo_work`.
        layers: names, of one level of the net. Those without work are left out.
    """
    parts: dict[str, list[Work]] = {name: [] for name in (*layers, OUTSIDE)}
    for operation in operations:
        parts[layer_of(operation.name, layers) or OUTSIDE].append(operation)
    return [Work.sum(name, works) for name, works in parts.items() if works]
