"""The net that a recipe experiments on: its own, or the reader's."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.data import Dataset
from tfperf.errors import TfperfError
from tfperf.exports import Servable, open_model, read_inputs
from tfperf.measure import PeakMemory, format_bytes
from tfperf.measure.memory import available_memory
from tfperf.nets import NAMES

__all__ = ["OpenedModel", "open_for_recipe"]

MEMORY_SHARE = 0.4
"""Share of the available memory that a training step may take: a recipe keeps copies of the net, and its optimizers."""

VISIBLE = 64 * 2**20
"""Bytes by which the peak of a step must grow with its examples to tell what an example takes."""


class OpenedModel:
    """A net with inputs for it.

    Attributes:
        net: the Keras model.
        name: a plain name for files and titles.
        model, seed: what opens it again: what --model says, and the seed of random weights.
        words: the net in a sentence: "get_net('mlp')" or "your net (my_model.py:build)".
        is_yours: whether it is another than the recipe's own.
        arrays: one array for each input, (batch, ...), in the order of the signature.
        args: the same as tensors in the positional arguments that the net takes: `net(*args)`.
        servable: the net with its signature, for exporting and for engines.
    """

    def __init__(
        self,
        model: str,
        servable: Servable,
        given: Sequence[NDArray[Any]] | None,
        batch: int,
        seed: int,
        is_yours: bool,
        say: Callable[[str], None],
    ) -> None:
        """Use `open_for_recipe` instead."""
        self.net: keras.Model = servable.net
        self.name = servable.name
        self.is_yours = is_yours
        self.words = f"get_net('{model}')" if model in NAMES else f"your net ({model})"
        self.servable = servable
        self.model, self.seed, self._given, self._say = model, seed, given, say
        self.arrays = self.batch_of(batch)
        self.args = self.arguments(self.arrays)

    def batch_of(self, size: int) -> tuple[NDArray[Any], ...]:
        """Inputs with a batch of `size`: those of --inputs, cut or repeated, or random ones."""
        return self.servable.signature.examples(size, self._given, self.seed)

    def arguments(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Arrays in the order of the signature as the positional arguments of the net: `net(*arguments)`."""
        return tuple(self.servable.pack([tf.constant(array) for array in arrays]))

    def training_batch(self, data: Dataset | None, size: int) -> tuple[tuple[Any, ...], Any, Callable[..., Any]]:
        """Give inputs, labels and a loss (labels, outputs) -> scalar, for one training step.

        Args:
            data: images that the net is made for, with labels, for the cross-entropy of its logits; None: the net's own
                inputs, labels of zero, and the mean square of its outputs, a loss for a net whose labels are not known.
            size: examples; fewer, a power of 2, where the reader's net takes more memory than there is for so many.

        Raises:
            TfperfError: not even one example fits.
        """
        if data is None:
            size = self._that_fit(size) if self.is_yours else size
            return self.arguments(self.batch_of(size)), tf.zeros([size]), _mean_square
        images = tf.constant(data.train_images[:size] / np.float32(255))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return (images,), tf.constant(data.train_labels[:size]), loss

    def _that_fit(self, size: int) -> int:
        """Give the number of examples that one training step has memory for, at most `size`; say so if it is less."""
        examples, peak, bytes_each = 1, self._peak_of_a_step(1), 0
        while examples < size and bytes_each == 0:
            more = min(size, 4 * examples)
            grown = self._peak_of_a_step(more) - peak
            if grown > VISIBLE:
                bytes_each = grown // (more - examples)
            examples, peak = more, peak + max(0, grown)
        room = int(MEMORY_SHARE * available_memory())
        if bytes_each * size <= room:
            return size
        fit = room // bytes_each
        needs = f"a training step of {size} examples of {self.words} needs about {format_bytes(bytes_each * size)}"
        if fit < 1:
            raise TfperfError(f"expected a net that this machine has memory to train. {needs}")
        fit = 1 << (fit.bit_length() - 1)
        self._say(f"{needs[0].upper()}{needs[1:]}, so {fit} are taken; --batch takes fewer.")
        return fit

    def _peak_of_a_step(self, examples: int) -> int:
        """Bytes that this process has at the most while it takes the gradient for a few examples."""
        _give_back_freed_memory()
        memory, args = PeakMemory(), self.arguments(self.batch_of(examples))
        with tf.GradientTape() as tape:
            loss = _mean_square(None, self.net(*args, training=True))
        tape.gradient(loss, self.net.trainable_variables)
        return memory.read().resident

    def copy(self, policy: str = "float32") -> keras.Model:
        """The net once more, with equal weights of its own, whose layers compute under a Keras dtype policy.

        Weights stay float32 under the mixed policies. The layer or layers that give the outputs keep float32, so that
        losses and logits do not overflow.
        """
        keras.utils.set_random_seed(self.seed)
        net = open_model(self.model, seed=self.seed).net
        net.set_weights(self.net.get_weights())
        if policy != "float32":
            last = _last_layers(net)
            for layer in net._flatten_layers():
                if layer.compute_dtype == "float32" and layer not in last:
                    layer.dtype_policy = policy
        return net


def open_for_recipe(
    model: str, inputs: Path | None, batch: int, seed: int, *, own: str, say: Callable[[str], None] = print
) -> OpenedModel:
    """Open what --model and --inputs name.

    Args:
        model: a name of get_net, file.py:function, module:function or a .keras file.
        inputs: an .npz file with the net's inputs by their names; None: random ones.
        batch: examples.
        seed: seed of random weights and inputs.
        own: the recipe's own net.
        say: prints a sentence for the reader.

    Raises:
        TfperfError: there is no such model, it is no Keras model, or it gives numbers that are not finite.
    """
    servable = open_model(model, seed=seed)
    if servable.net is None:
        raise TfperfError(
            "expected a Keras model (a name of get_net, file.py:function, module:function or a .keras file), whose "
            f"layers the recipe can look at. Received: the SavedModel {model}; `tfperf tune {model}` takes it"
        )
    if strings := [form for form in servable.signature.inputs if form.dtype == "string"]:
        raise TfperfError(f"expected a model whose inputs are numbers. Received: {model}, whose input is {strings[0]}")
    given = None if inputs is None else read_inputs(inputs, servable.signature)
    opened = OpenedModel(model, servable, given, batch, seed, is_yours=model != own or given is not None, say=say)
    if not all(np.isfinite(output).all() for output in servable.reference(opened.arrays)):
        fed = "the inputs of --inputs" if given is not None else "random inputs; give real ones with --inputs FILE.npz"
        raise TfperfError(f"expected finite outputs of {model} in float32. Received: NaN or infinity, with {fed}")
    return opened


def _give_back_freed_memory() -> None:
    """Have the C library return what was freed: what it keeps would hide a part of the next peak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _mean_square(_: Any, outputs: Any) -> Any:
    return tf.add_n([tf.reduce_mean(tf.cast(output, tf.float32) ** 2) for output in keras.tree.flatten(outputs)])


def _last_layers(net: keras.Model) -> list[Any]:
    """The layers that give the outputs, where Keras knows them; for a subclass its last layer."""
    try:
        outputs = keras.tree.flatten(net.outputs)
    except (AttributeError, ValueError):
        outputs = []
    if outputs:
        return [tensor._keras_history.operation for tensor in outputs]
    layers = [layer for layer in net._flatten_layers(include_self=False) if layer.weights]
    return layers[-1:]
