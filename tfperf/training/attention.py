"""Attention of a sequence with itself, by as few and as large products of matrices as there can be."""

import functools
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask  # which its own layer asks for; they have no public name

from tfperf.training.attending import Dropping, Heads, attend, attend_by_formulas, can_attend
from tfperf.training.bias import add_bias
from tfperf.training.dense_products import can_multiply_rows, multiply_rows
from tfperf.training.dropout import can_drop, dropped_of, next_draws
from tfperf.training.matmul import multiply
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["AttentionInBfloat16", "AttentionInFloat32", "MergedAttention"]


@saved_as(keras.layers.MultiHeadAttention)
class MergedAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """Keras's `MultiHeadAttention`, which computes queries, keys and values of one sequence by one product.

    Keras has three products there, each with a bias of its own, and an einsum on either side of the softmax. Here it is
    one product with the three kernels side by side; what follows for each example and head is one pass in C++ while it
    trains, and one for the gradient. Arguments, weights, gradients and the saved form are Keras's, as are the numbers
    that dropout draws. Left to Keras: other sequences as keys or values, gates, windows, scores that are asked for,
    masks of each head, sequences of more axes than one.

    Source: Vaswani et al., "Attention Is All You Need", 2017; Keras's layer of that name.
    """

    takes = frozenset({"query_mask", "value_mask", "key_mask", "attention_mask", "use_causal_mask"})
    """Arguments of `call`, beside the sequences, with which it computes otherwise than Keras's layer."""

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
            query_mask, value_mask, key_mask: (batch, length), bool: the places that are none of padding; None: all.
            attention_mask: (batch or 1, length or 1, length), bool: the places that each one sees.
            return_attention_scores: left to Keras.
            training: whether dropout drops.
            use_causal_mask: no place sees those behind it.

        Returns:
            (batch, length, features of the output), in the compute type.
        """
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        masks |= {"attention_mask": attention_mask}
        others = {"training": training, "use_causal_mask": use_causal_mask}
        whole = attention_mask is None or len(attention_mask.shape) == 3
        if return_attention_scores or not (whole and self._merges(query, value, key)):
            return super().call(query, value, key, **masks, **others, return_attention_scores=return_attention_scores)
        masks["query_mask"] = get_keras_mask(query)  # whatever was given, as Keras's layer does
        set_keras_mask(query, None)
        causal = use_causal_mask and all(one is None for one in masks.values())
        mask = None if causal else self._compute_attention_mask(query, value, **masks, use_causal_mask=use_causal_mask)
        length, features = (query.shape[1] or tf.shape(query)[1]), query.shape[2]
        side_by_side = (self.query_dense, self.key_dense, self.value_dense)
        kernel = tf.concat([tf.reshape(dense.kernel, [features, -1]) for dense in side_by_side], axis=1)
        bias = tf.concat([tf.reshape(dense.bias, [-1]) for dense in side_by_side], axis=0) if self.use_bias else None
        found = self._project(tf.reshape(query, [-1, features]), kernel, bias)
        merged = tf.reshape(found, [-1, length, found.shape[1]])
        heads = Heads(self.num_heads, self.key_dim, self.value_dim, causal)
        width = self.num_heads * self.value_dim
        seen = tf.reshape(self._attend(merged, heads, mask, training), [-1, width])
        bias = self.output_dense.bias if self.use_bias else None
        output = self._project(seen, tf.reshape(self.output_dense.kernel, [width, -1]), bias)
        output = tf.reshape(output, [-1, length, output.shape[-1]])
        if masks["query_mask"] is not None:
            set_keras_mask(output, masks["query_mask"])
        return output

    def _attend(self, merged: Any, heads: Heads, mask: Any, training: bool | None) -> Any:
        """From queries, keys and values of all heads side by side to what each head sees, side by side."""
        layer = self._dropout_layer if self.dropout else None
        natively = in_training(self) and can_attend(merged, mask)
        if natively and (layer is None or can_drop(layer)):
            draws = layer and Dropping(dropped_of(layer.rate, merged.dtype), *next_draws(layer))
            return attend(merged, heads, mask, draws)
        return attend_by_formulas(merged, heads, mask, layer and functools.partial(layer, training=training))

    def _project(self, rows: Any, kernel: Any, bias: Any) -> Any:
        """(rows, inner) by (inner, columns), and a bias (columns,), None: none."""
        found = tf.matmul(rows, kernel)
        return found if bias is None else tf.nn.bias_add(found, bias)

    def _merges(self, query: Any, value: Any, key: Any) -> bool:
        """Whether it is a sequence with itself, and the layer does nothing that is left to Keras."""
        if not (tf.is_tensor(query) and query is value and (key is None or key is value) and len(query.shape) == 3):
            return False
        own = self._use_gate or self._activity_regularizer or self._sliding_window is not None
        whole = len(self.output_dense.kernel.shape) == 3 and query.shape[2] is not None
        denses = (self.query_dense, self.key_dense, self.value_dense, self.output_dense)
        changed = any(getattr(one, "quantization_mode", None) or getattr(one, "lora_enabled", False) for one in denses)
        return whole and not own and not changed


@saved_as(keras.layers.MultiHeadAttention)
class AttentionInBfloat16(MergedAttention):
    """The same within what XLA compiles, in bfloat16, with the products of `multiply` but for those of a head."""

    def _project(self, rows: Any, kernel: Any, bias: Any) -> Any:
        if not (rows.shape.is_fully_defined() and rows.dtype == kernel.dtype == tf.bfloat16):
            return super()._project(rows, kernel, bias)
        found = multiply(rows, kernel)
        return found if bias is None else add_bias(found, tf.convert_to_tensor(bias))


@saved_as(keras.layers.MultiHeadAttention)
class AttentionInFloat32(MergedAttention):
    """The same within what XLA compiles, in float32, with the products of `multiply_rows` but for those of a head."""

    def _project(self, rows: Any, kernel: Any, bias: Any) -> Any:
        if bias is None or not can_multiply_rows(rows, kernel):
            return super()._project(rows, kernel, bias)
        return multiply_rows(rows, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))
