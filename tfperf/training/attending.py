"""Attention of sequences with themselves, within what XLA compiles, with no scores or transposed heads in memory."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.dropout import Dropped, drop
from tfperf.training.gradients import differentiable

__all__ = ["Dropping", "Heads", "attend", "attend_by_formulas", "can_attend"]

SOURCE = "attention"

UNSEEN = -0.7 * tf.float32.max
"""The score of a key that a query does not see, as Keras has it."""


class Heads(NamedTuple):
    """What heads there are, and what a query sees."""

    number: int
    keys: int
    """Features of a query and of a key of one head."""
    values: int
    """Features of a value of one head."""
    causal: bool = False
    """No query sees a key behind it."""

    @property
    def scale(self) -> float:
        """The scores are multiplied by it."""
        return 1 / math.sqrt(self.keys)


class Dropping(NamedTuple):
    """Dropout of shares: how many, and from which draws of TensorFlow's."""

    dropped: Dropped
    key: Any
    counter: Any


def can_attend(merged: Any, mask: Any = None) -> bool:
    """Whether `attend` takes these: sizes and type are such, and there is a C++ compiler and no GPU."""
    known = None not in merged.shape[1:] and merged.shape[1] > 0
    known = known and (mask is None or (mask.shape[1] is not None and mask.shape[2] == merged.shape[1]))
    return known and merged.dtype.name in xla_function.TYPES and xla_function.is_there(SOURCE)


def attend(merged: Any, heads: Heads, mask: Any = None, dropping: Dropping | None = None) -> Any:
    """Attend where `can_attend`, within what XLA compiles; the gradient computes the scores anew.

    Args:
        merged: (batch, length, features), float32 or bfloat16: queries of all heads, then all keys, then all values.
        heads: which these are.
        mask: (batch or 1, length or 1, length), bool: the keys that each query sees; None: all.
        dropping: None: no share is dropped.

    Returns:
        (batch, length, heads * values), in the type of `merged`, computed in float32. A query that sees nothing has the
        mean of all values, or with dropout 0, as Keras has it.
    """
    seen = tf.ones([1, 1, 1], tf.uint8) if mask is None else tf.cast(mask, tf.uint8)
    draws = (tf.zeros([1], tf.uint64), tf.zeros([2], tf.uint64)) if dropping is None else dropping[1:]
    found: Any = _natively(merged.dtype.name, heads, dropping and dropping.dropped)(merged, seen, *draws)
    return found


def attend_by_formulas(merged: Any, heads: Heads, mask: Any = None, dropout: Callable[[Any], Any] | None = None) -> Any:
    """The same by TensorFlow's operations, wherever it runs; the softmax is float32 whatever the type, as Keras's.

    Args:
        merged, heads, mask: as of `attend`.
        dropout: drops shares, (batch, heads, queries, keys), or does not, as in inference; None: there is none.
    """
    length = merged.shape[1] or tf.shape(merged)[1]
    sizes = (heads.keys, heads.keys, heads.values)
    parts = tf.split(merged, [heads.number * size for size in sizes], axis=2)
    by_head = [
        tf.transpose(tf.reshape(part, [-1, length, heads.number, size]), [0, 2, 1, 3])
        for part, size in zip(parts, sizes, strict=True)
    ]
    queries, keys, values = by_head  # (batch, heads, length, size)
    scores = tf.cast(tf.matmul(queries * tf.cast(heads.scale, queries.dtype), keys, transpose_b=True), tf.float32)
    if heads.causal:
        seen = tf.linalg.band_part(tf.ones([1, length, length], tf.bool), -1, 0)
        mask = seen if mask is None else seen & mask
    if mask is not None:
        mask = mask[:, tf.newaxis]  # of all heads
        scores = tf.where(mask, scores, UNSEEN)
    shares = tf.nn.softmax(scores)
    if mask is not None and dropout:
        shares = tf.where(mask, shares, 0.0)
    shares = tf.cast(shares, values.dtype)
    shares = dropout(shares) if dropout else shares
    return tf.reshape(tf.transpose(tf.matmul(shares, values), [0, 2, 1, 3]), [-1, length, heads.number * heads.values])


@functools.cache
def _natively(dtype: str, heads: Heads, dropped: Dropped | None) -> Callable[..., Any]:
    """`attend` for numbers of one type, with a mask of one key where there is none."""
    kind = xla_function.TYPES[dtype]
    settings = {"heads": heads.number, "keys": heads.keys, "scale": heads.scale, "causal": int(heads.causal)}
    threshold, scale = dropped or Dropped(0, 1.0)
    settings |= {"threshold": threshold, "kept_scale": scale}

    @xla_function.compiled
    def forward(*operands: Any) -> Any:
        merged = operands[0]
        form = tf.TensorSpec([*merged.shape[:2], heads.number * heads.values], merged.dtype)
        return xla_function.call(f"tfperf_attention_{kind}", operands, [form], **settings)[0]

    @xla_function.compiled
    def backward(*operands: Any) -> Any:
        return xla_function.call(f"tfperf_attention_gradient_{kind}", operands, [1], **settings)

    def formulas(merged: Any, seen: Any, *draws: Any) -> Any:
        dropout = dropped and functools.partial(drop, key=draws[0], counter=draws[1], dropped=dropped)
        masked = seen.shape[2] == merged.shape[1]
        return attend_by_formulas(merged, heads, tf.cast(seen, tf.bool) if masked else None, dropout)

    return differentiable(forward, backward, formulas, end=1)
