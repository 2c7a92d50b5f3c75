"""A plan made real."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.exports.signature import Signature

__all__ = ["Arrays", "Runner"]

Arrays = tuple[NDArray[Any], ...]


class Runner:
    """From input arrays to output arrays, both in the order of the signature.

    Attributes:
        plan: what it does.
        signature: the named inputs and outputs.
        run: the call itself, from one array for each input to a list or tuple of one for each output: nothing is
            checked, and nothing but the engine's own call is done. Where `reuses_outputs` is set, the next call
            overwrites what it returned.
        proof: what shows that the plan took effect, by what was asked for: {"threads": "1, as the engine says"}.
        size: bytes on disk of what the engine loads; None: it loads nothing.
    """

    def __init__(
        self,
        plan: Plan,
        signature: Signature,
        run: Callable[..., Sequence[NDArray[Any]]],
        *,
        proof: Mapping[str, str],
        size: int | None = None,
        reuses_outputs: bool = False,
        close: Callable[[], None] | None = None,
    ) -> None:
        """Engines make these.

        Args:
            size: None: it loads nothing, or what it was converted to as a whole.
            close: gives back what the engine holds beyond Python's own memory.
        """
        self.plan, self.signature, self.run = plan, signature, run
        self.proof, self.size, self.reuses_outputs = dict(proof), size, reuses_outputs
        self._close = close

    def __call__(self, *inputs: NDArray[Any]) -> Arrays:
        """Check the inputs, run, and return arrays that are the caller's own.

        Raises:
            ValueError: the net does not take these inputs, or the runner is closed.
        """
        arrays = tuple(map(np.asarray, inputs))
        self.signature.check(arrays)
        if self.plan.batch is not None:
            self._check_batch(arrays)
        outputs = self.run(*arrays)
        return tuple(output.copy() for output in outputs) if self.reuses_outputs else tuple(outputs)

    def close(self) -> None:
        """Give back what the engine holds; the runner cannot be called any more."""
        self.run = _closed
        if self._close is not None:
            self._close()
            self._close = None

    def __enter__(self) -> Self:
        """Close at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _check_batch(self, arrays: Arrays) -> None:
        for form, array in zip(self.signature.inputs, arrays, strict=True):
            if form.batched and len(array) != self.plan.batch:
                raise ValueError(
                    f"expected a batch of {self.plan.batch}, for which {self.plan} was built; "
                    f"pass so many, or build it for other sizes. Received: {len(array)}"
                )


def _closed(*_: Any) -> Arrays:
    raise ValueError("expected an open runner, this one was closed")
