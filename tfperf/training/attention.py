"""Attention of a sequence with itself, by as few and as large products of matrices as there can be."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.matmul import add_bias, multiply
from tfperf.training.saved_form import saved_as

__all__ = ["AttentionByAmx", "MergedAttention"]


@saved_as(keras.layers.MultiHeadAttention)
class MergedAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """Keras's `MultiHeadAttention`, which computes queries, keys and values of one sequence by one product.

    Keras has three products there, each with a bias of its own, and an einsum on either side of the softmax. Here it is
    one product with the three kernels side by side, then products of matrices for each example and head. Arguments,
    weights, gradients and the saved form are Keras's. Left to Keras: other sequences as keys or values, masks, dropout,
    gates, windows, scores that are asked for, sequences of more axes than one.

    Source: Vaswani et al., "Attention Is All You Need", 2017; Keras's layer of that name.
    """

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Attend.

        Args:
            query, value, key: (batch, length, features); here all one tensor.
            query_mask, value_mask, key_mask, attention_mask, return_attention_scores, training, use_causal_mask: left
                to Keras.

        Returns:
            (batch, length, features of the output), in the compute type.
        """
        masks = (query_mask, value_mask, key_mask, attention_mask)
        asked = return_attention_scores or use_causal_mask or any(one is not None for one in masks)
        if asked or not self._merges(query, value, key):
            others = {"return_attention_scores": return_attention_scores, "use_causal_mask": use_causal_mask}
            return super().call(query, value, key, *masks, training=training, **others)
        length, features = (query.shape[1] or tf.shape(query)[1]), query.shape[2]
        merged = (self.query_dense, self.key_dense, self.value_dense)
        sizes = (self.key_dim, self.key_dim, self.value_dim)
        kernel = tf.concat([tf.reshape(dense.kernel, [features, -1]) for dense in merged], axis=1)
        bias = tf.concat([tf.reshape(dense.bias, [-1]) for dense in merged], axis=0) if self.use_bias else None
        found = self._project(tf.reshape(query, [-1, features]), kernel, bias)
        parts = tf.split(found, [self.num_heads * size for size in sizes], axis=1)
        queries, keys, values = (self._by_head(part, length, size) for part, size in zip(parts, sizes, strict=True))
        scores = tf.matmul(queries * tf.cast(self._inverse_sqrt_key_dim, queries.dtype), keys, transpose_b=True)
        shares = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), values.dtype)  # as Keras has it
        width = self.num_heads * self.value_dim
        seen = tf.reshape(tf.transpose(tf.matmul(shares, values), [0, 2, 1, 3]), [-1, width])
        bias = self.output_dense.bias if self.use_bias else None
        output = self._project(seen, tf.reshape(self.output_dense.kernel, [width, -1]), bias)
        return tf.reshape(output, [-1, length, output.shape[-1]])

    def _project(self, rows: Any, kernel: Any, bias: Any) -> Any:
        """(rows, inner) by (inner, columns), and a bias (columns,), None: none."""
        found = tf.matmul(rows, kernel)
        return found if bias is None else tf.nn.bias_add(found, bias)

    def _by_head(self, part: Any, length: Any, size: int) -> Any:
        """(batch * length, heads * size) as (batch, heads, length, size)."""
        return tf.transpose(tf.reshape(part, [-1, length, self.num_heads, size]), [0, 2, 1, 3])

    def _merges(self, query: Any, value: Any, key: Any) -> bool:
        """Whether it is a sequence with itself, and the layer does nothing that is left to Keras."""
        if not (tf.is_tensor(query) and query is value and (key is None or key is value) and len(query.shape) == 3):
            return False
        own = self._use_gate or self.dropout or self._activity_regularizer or self._sliding_window is not None
        whole = len(self.output_dense.kernel.shape) == 3 and query.shape[2] is not None
        denses = (self.query_dense, self.key_dense, self.value_dense, self.output_dense)
        changed = any(getattr(one, "quantization_mode", None) or getattr(one, "lora_enabled", False) for one in denses)
        return whole and not own and not changed and getattr(query, "_keras_mask", None) is None


@saved_as(keras.layers.MultiHeadAttention)
class AttentionByAmx(MergedAttention):
    """The same within what XLA compiles, in bfloat16, with the products of `multiply` but for those of a head."""

    def _project(self, rows: Any, kernel: Any, bias: Any) -> Any:
        if not (rows.shape.is_fully_defined() and rows.dtype == kernel.dtype == tf.bfloat16):
            return super()._project(rows, kernel, bias)
        found = multiply(rows, kernel)
        return found if bias is None else add_bias(found, tf.convert_to_tensor(bias))
