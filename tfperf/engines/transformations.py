"""Which transformations would change a net."""

from typing import TYPE_CHECKING

from tfperf.engines.plan import TRANSFORMATIONS, Transformation
from tfperf.exports.servable import Servable

if TYPE_CHECKING:
    import keras

__all__ = ["applicable"]


def applicable(net: "keras.Model | Servable") -> tuple[Transformation, ...]:
    """Those that would change the net, each by itself, in the order of `TRANSFORMATIONS`.

    Of a SavedModel, only constant_weights and fixed_batch can. In one plan fold_batch_norm leaves fuse_batch_norm the
    batch normalizations that cannot be folded: `Servable.batch_norms` tells whether there are any.

    Raises:
        ExportError: the net cannot be traced.
        TypeError: not a Keras model.
    """
    servable = net if isinstance(net, Servable) else Servable.from_net(net)
    changing: set[Transformation] = set()
    if servable.trace().variables:
        changing.add("constant_weights")
    if any(form.shape[:1] == (None,) for form in servable.signature.inputs):
        changing.add("fixed_batch")
    if servable.net is not None:
        found = servable.batch_norms()
        changing |= {"fold_batch_norm"} if found.foldable else set()
        changing |= {"fuse_batch_norm"} if found.fusable else set()
    return tuple(one for one in TRANSFORMATIONS if one in changing)
