"""How long a step of one worker takes, by its batch: t1(b)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

__all__ = ["BatchTimes"]


@dataclass(frozen=True)
class BatchTimes:
    """A step of a batch takes `fixed + each * batch` seconds.

    Attributes:
        fixed: seconds of a step, however small its batch: launching, updating the weights.
        each: seconds for each example.
        measured: the times that this is fitted to, by batch.
    """

    fixed: float
    each: float
    measured: tuple[tuple[int, float], ...] = ()

    def seconds(self, batch: float) -> float:
        """Return the seconds of a step."""
        return self.fixed + self.each * batch

    @classmethod
    def fit(cls, measured: Mapping[int, float]) -> "BatchTimes":
        """Fit both constants, neither negative, by least relative squares; one time alone has no fixed part.

        Args:
            measured: seconds of a step by batch.

        Raises:
            ValueError: there is no time, or one is not above 0.
        """
        batches, seconds = np.array(list(measured), float), np.array(list(measured.values()), float)
        if not len(batches) or not (np.isfinite(seconds) & (seconds > 0)).all() or not (batches >= 1).all():
            raise ValueError(f"expected seconds above 0 by batch. Received: {dict(measured)!r}")
        columns = np.stack([np.ones_like(batches), batches], axis=1) / seconds[:, np.newaxis]  # (batches, 2)
        if len(batches) == 1:
            columns[:, 0] = 0.0
        fixed, each = nnls(columns, np.ones_like(seconds))[0]
        return cls(float(fixed), float(each), tuple(sorted(measured.items())))
