"""Dynamic loss scaling across ranks: one verdict for all on whether a step's gradients are finite.

`model.compile` under mixed_float16 puts Keras's LossScaleOptimizer around the optimizer it is given. That looks at
this rank's gradients alone and skips the step when they overflow, so that the others wait for its gradients for
ever. Its public `check_finite` is therefore made to ask the optimizer inside, where that is distributed.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras

__all__ = ["agree_on_finite"]


@functools.cache
def agree_on_finite() -> None:
    """Make each LossScaleOptimizer around a distributed optimizer ask all ranks. Others stay as they are."""
    on_this_rank = keras.optimizers.LossScaleOptimizer.check_finite

    @functools.wraps(on_this_rank)
    def check_finite(self: Any, grads: Sequence[Any]) -> Any:
        finite = on_this_rank(self, grads)
        everywhere = getattr(self.inner_optimizer, "finite_everywhere", None)
        return everywhere(finite) if everywhere else finite

    keras.optimizers.LossScaleOptimizer.check_finite = check_finite
