"""Reading a saved model back with its optimizer distributed again."""

from pathlib import Path
from typing import Any

import keras

from tfperf.parallel.horovod.optimizer import DistributedOptimizer

__all__ = ["load_model"]


def load_model(
    filepath: str | Path, custom_objects: dict[str, Any] | None = None, safe_mode: bool = True, **options: Any
) -> keras.Model:
    """Read a `.keras` file and go on training it on all ranks: weights and optimizer state as they were saved.

    A file written by a distributed model names the plain optimizer, so `keras.models.load_model` reads it too,
    without Horovod, and then trains this rank alone.

    Args:
        filepath: the `.keras` file, readable on every rank.
        custom_objects: as in `keras.models.load_model`.
        safe_mode: as in `keras.models.load_model`: code in the file is not run.
        **options: of `DistributedOptimizer`; a file does not hold them.

    Raises:
        ValueError: the file holds no compiled optimizer.
    """
    model = keras.models.load_model(filepath, custom_objects=custom_objects, safe_mode=safe_mode)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"expected a compiled model in {filepath}, its optimizer is missing; compile it after loading")
    DistributedOptimizer(model.optimizer, **options)
    return model
