"""A net as the list of its operations in an order in which they can be computed, and the places to cut it."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import TfperfError

__all__ = ["NetGraph", "has_mask"]


class NetGraph:
    """The operations of a Sequential or functional net, each after those whose outputs it needs."""

    def __init__(self, net: keras.Model) -> None:
        """Read the net.

        Raises:
            TfperfError: the net is neither Sequential nor functional, or it is not built.
        """
        try:
            functional = keras.Model(net.inputs, net.outputs)
            by_depth = functional._nodes_by_depth
        except (AttributeError, ValueError, TypeError) as error:
            raise TfperfError(
                "expected a Sequential or functional Keras net that begins with keras.Input. "
                f"Received: {type(net).__name__} '{getattr(net, 'name', net)}', whose layers are not known in advance"
            ) from error
        self.inputs, self.outputs = list(net.inputs), list(net.outputs)
        self.output_structure = net.outputs[0] if isinstance(net, keras.Sequential) else net.output
        in_order = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
        self.nodes: list[Any] = [node for node in in_order if not node.is_input]

    def crossing(self, position: int) -> list[Any]:
        """The tensors that exist before the node at this position and that it, a later one or the output needs."""
        if position == 0:
            return self.inputs
        if position == len(self.nodes):
            return self.outputs
        made = {id(tensor) for tensor in self.inputs}
        made |= {id(tensor) for node in self.nodes[:position] for tensor in node.outputs}
        needed = [tensor for node in self.nodes[position:] for tensor in node.input_tensors] + self.outputs
        return list({id(tensor): tensor for tensor in needed if id(tensor) in made}.values())

    def may_cut(self, position: int) -> bool:
        """Whether the net can be cut before this node: not between two uses of one layer, nor across a mask.

        A layer that is used twice has one set of weights, which lies on one device; and a mask is attached to its
        tensor by Keras, and is lost on the way to another device.
        """
        before = {id(node.operation) for node in self.nodes[:position]}
        after = {id(node.operation) for node in self.nodes[position:]}
        return not before & after and not any(map(has_mask, self.crossing(position)))

    def flops(self) -> list[int]:
        """Count the floating-point operations of each node for one example, with TensorFlow's profiler."""

        def forward(*inputs: tf.Tensor) -> None:
            values = dict(zip(map(id, self.inputs), inputs, strict=True))
            for index, node in enumerate(self.nodes):
                with tf.name_scope(f"node_{index}"):
                    arguments, options = node.arguments.fill_in(values)
                    outputs = keras.tree.flatten(node.operation(*arguments, **options))
                values |= zip(map(id, node.outputs), outputs, strict=True)

        one_example = [tf.TensorSpec([1, *tensor.shape[1:]], tensor.dtype) for tensor in self.inputs]
        graph = tf.function(forward, autograph=False).get_concrete_function(*one_example).graph
        builder = tf.compat.v1.profiler.ProfileOptionBuilder
        options = builder(builder.float_operation()).with_empty_output().build()
        logger, counts = tf.get_logger(), [0] * len(self.nodes)
        level = logger.level
        logger.setLevel("ERROR")  # else it says that the profiler is TensorFlow 1's, which has no successor for this
        try:
            profile = tf.compat.v1.profiler.profile(graph, cmd="scope", options=options)
        finally:
            logger.setLevel(level)
        for operation in profile.children:
            scope = operation.name.partition("/")[0]
            if scope.startswith("node_"):
                counts[int(scope.removeprefix("node_"))] += operation.total_float_ops
        return counts

    def balanced_cuts(self, stages: int) -> list[int]:
        """Where to cut so that the stage with the most floating-point operations has as few as it can.

        Returns:
            `stages - 1` positions, ascending; a stage begins at each.

        Raises:
            TfperfError: the net has fewer places to cut.
        """
        places = [position for position in range(1, len(self.nodes)) if self.may_cut(position)]
        if not 1 <= stages <= len(places) + 1:
            raise TfperfError(
                f"expected 1 to {len(places) + 1} stages: the net has {len(self.nodes)} layers and operations, and can "
                f"be cut in {len(places)} places, as layers used twice and masks stay in one stage. Received: {stages}"
            )
        return _balanced([count + 1 for count in self.flops()], places, stages)  # + 1: none is free


def has_mask(tensor: Any) -> bool:
    """Whether Keras attaches a mask to a symbolic tensor, as `Embedding(mask_zero=True)` makes one."""
    return getattr(tensor, "_keras_mask", None) is not None


def _balanced(work: Sequence[float], places: Sequence[int], stages: int) -> list[int]:
    """The cuts of all partitions into so many stages whose largest stage is the smallest."""
    total = np.concatenate([[0], np.cumsum(work)])
    ends = [*places, len(work)]
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        end: (total[end], ()) for end in ends
    }  # of the nodes before `end`, in one stage so far
    for _ in range(stages - 1):
        best = {
            end: min((max(best[cut][0], total[end] - total[cut]), (*best[cut][1], cut)) for cut in best if cut < end)
            for end in ends
            if any(cut < end for cut in best)
        }
    return list(best[len(work)][1])
