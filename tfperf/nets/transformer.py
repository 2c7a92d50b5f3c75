"""A small transformer encoder over token ids: matrix products and attention, no convolution."""

from typing import Any

import keras

from tfperf.nets.arguments import whole_number, whole_numbers

__all__ = ["build"]


def build(
    input_shape: tuple[int] = (64,),
    vocabulary_size: int = 256,
    width: int = 128,
    heads: int = 4,
    depth: int = 2,
    feed_forward: int = 512,
    num_classes: int = 10,
) -> keras.Model:
    """Build an encoder that classifies sequences: learned positions, pre-norm blocks, mean over the tokens.

    Sources: Vaswani et al., "Attention Is All You Need", 2017 (blocks); Xiong et al., "On Layer Normalization
    in the Transformer Architecture", 2020 (normalization before each part, which trains without a warm-up of
    the learning rate). There is no dropout and no padding mask: every token of a sequence counts.

    Args:
        input_shape: (sequence_length,); the input is (batch, sequence_length), int32 token ids of 0 to
            ``vocabulary_size`` - 1. Larger ids are an error on a CPU and read as zeros on a GPU.
        vocabulary_size: how many token ids there are; 256 makes every byte a token, and any file data.
        width: size of the vector of each token.
        heads: attention heads; must divide ``width``.
        depth: how many blocks.
        feed_forward: width of the hidden layer in each block.
        num_classes: width of the output.

    Returns:
        A model with logits (batch, num_classes), float32 under every precision policy.

    Raises:
        ValueError: an argument is not what is described above.
    """
    (sequence_length,) = whole_numbers("input_shape", input_shape, length=1)
    vocabulary_size = whole_number("vocabulary_size", vocabulary_size)
    width = whole_number("width", width)
    heads = whole_number("heads", heads)
    depth = whole_number("depth", depth)
    feed_forward = whole_number("feed_forward", feed_forward)
    num_classes = whole_number("num_classes", num_classes)
    if width % heads:
        raise ValueError(
            f"expected heads to divide width, as each head takes an equal part of it. "
            f"Received: width={width}, heads={heads}"
        )

    token_ids = keras.Input((sequence_length,), dtype="int32", name="token_ids")  # (batch, sequence_length)
    # 0, 1, 2, ... computed from the input, so that loading the net needs no class of ours.
    positions = keras.ops.cumsum(keras.ops.ones_like(token_ids), axis=1) - 1  # (batch, sequence_length)
    tokens = keras.layers.Embedding(vocabulary_size, width, name="token_embedding")(token_ids)
    places = keras.layers.Embedding(sequence_length, width, name="position_embedding")(positions)
    x = keras.layers.Add(name="embedding")([tokens, places])  # (batch, sequence_length, width)
    for index in range(1, depth + 1):
        x = _block(x, heads, feed_forward, name=f"block{index}")  # (batch, sequence_length, width)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.GlobalAveragePooling1D(name="pool")(x)  # (batch, width)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)  # (batch, num_classes)
    return keras.Model(token_ids, logits, name="transformer")


def _block(x: Any, heads: int, feed_forward: int, name: str) -> Any:
    """Let each token attend to all, then pass each through two dense layers; (batch, length, width) twice."""
    width = x.shape[-1]
    normal = keras.layers.LayerNormalization(name=f"{name}_norm1")(x)
    attention = keras.layers.MultiHeadAttention(heads, key_dim=width // heads, name=f"{name}_attention")
    x = keras.layers.Add(name=f"{name}_add1")([x, attention(normal, normal)])  # (batch, length, width)
    normal = keras.layers.LayerNormalization(name=f"{name}_norm2")(x)
    hidden = keras.layers.Dense(feed_forward, activation="relu", name=f"{name}_hidden")(normal)
    change = keras.layers.Dense(width, name=f"{name}_output")(hidden)  # (batch, length, width)
    return keras.layers.Add(name=f"{name}_add2")([x, change])
