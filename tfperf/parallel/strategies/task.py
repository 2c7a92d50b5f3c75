"""What is trained, and what comes of it. Importing this loads neither TensorFlow nor Keras."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
from numpy.typing import NDArray

from tfperf.errors import TfperfError, in_one_line

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

__all__ = ["LIMIT", "Task", "Trained"]

LIMIT = 24 * 3600.0
"""Seconds that a training in other processes may take; those that wait for one that has died end much earlier."""


@dataclass(frozen=True)
class Task:
    """What is trained: the arguments of `train` that each replica needs."""

    build: Callable[[], "keras.Model"]
    batches: Callable[[], "tf.data.Dataset"]
    steps: int
    seed: int

    def pickled(self) -> bytes:
        """This for other processes: functions of the script, and those without a name, by value.

        Raises:
            TfperfError: it holds what cannot be pickled, such as a tensor or a data set.
        """
        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise TfperfError(
                "expected build and batches to be functions that make the net and the data, as other processes call "
                f"them. Pickling them raised {in_one_line(error)}"
            ) from error

    @staticmethod
    def unpickled(data: bytes) -> "Task":
        """What the process that started this one has pickled."""
        task: Task = pickle.loads(data)  # noqa: S301
        return task

    def built(self) -> "keras.Model":
        """A compiled net, its first weights those of the seed.

        Raises:
            TfperfError: `build` fails, or gives something else.
        """
        import keras

        wanted = "expected build() to give a compiled Keras model with its weights"
        keras.utils.set_random_seed(self.seed)
        try:
            net = self.build()
        except Exception as error:
            raise TfperfError(f"{wanted}. It raised {in_one_line(error)}") from error
        if not isinstance(net, keras.Model) or not net.built or not net.compiled:
            lacks = "another one" if isinstance(net, keras.Model) else repr(net)
            raise TfperfError(f"{wanted}. Received: {lacks}")
        return net

    def dataset(self) -> "tf.data.Dataset":
        """The batches of all steps: those of `batches`, repeated where there are fewer.

        Raises:
            TfperfError: `batches` fails, or gives something else.
        """
        import tensorflow as tf

        wanted = "expected batches() to give a tf.data.Dataset of batches"
        try:
            dataset = self.batches()
        except Exception as error:
            raise TfperfError(f"{wanted}. It raised {in_one_line(error)}") from error
        if not isinstance(dataset, tf.data.Dataset):
            raise TfperfError(f"{wanted}. Received: {dataset!r}")
        return dataset.repeat().take(self.steps)


@dataclass(frozen=True)
class Trained:
    """What came of a training: the same for every strategy, up to rounding and times."""

    weights: tuple[NDArray[Any], ...]
    """All weights of the net after the last step, in the order of `net.weights`; those of the first replica."""
    losses: tuple[float, ...]
    """Loss of each step before its update: the mean over the global batch."""
    seconds: tuple[float, ...]
    """Time of each step; the first ones trace the graph too."""
    replicas: int
    """In how many equal parts each batch was trained on at once."""
    digests: tuple[str, ...]
    """A digest of the trainable weights of each copy of the net: equal where all bits are equal."""
