"""What `tfperf.data.load` returns: arrays that carry the name and the place they came from."""

import dataclasses
import operator

import numpy as np
import numpy.typing as npt

__all__ = ["Dataset"]


@dataclasses.dataclass(frozen=True, eq=False)  # eq=False: comparing arrays gives arrays, not one bool
class Dataset:
    """A labelled image data set, split into train and test. Its arrays are read-only.

    Attributes:
        name: the data set these images really are, e.g. "fashion_mnist".
        source: where they were really found, in words, e.g. "Keras cache: <folder>".
        class_names: one name for each label, in order of the labels 0, 1, ...
        train_images: uint8, (n_train, height, width, channels), 0 (background) to 255.
        train_labels: int64, (n_train,), from 0 to num_classes - 1.
        test_images: uint8, (n_test, height, width, channels).
        test_labels: int64, (n_test,).
        part_of: (n_train, n_test) of the whole set where this is only its first images, else None.

    Raises:
        ValueError: the arrays do not have these shapes and types, or a label has no class name.
    """

    name: str
    source: str
    class_names: tuple[str, ...]
    train_images: npt.NDArray[np.uint8]  # (n_train, height, width, channels)
    train_labels: npt.NDArray[np.int64]  # (n_train,)
    test_images: npt.NDArray[np.uint8]  # (n_test, height, width, channels)
    test_labels: npt.NDArray[np.int64]  # (n_test,)
    part_of: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images: npt.NDArray[np.uint8] = getattr(self, f"{part}_images")
            labels: npt.NDArray[np.int64] = getattr(self, f"{part}_labels")
            if images.dtype != np.uint8 or images.ndim != 4 or len(images) == 0:
                raise ValueError(
                    f"expected {part}_images as uint8 (n, height, width, channels). "
                    f"Received: {images.dtype} {images.shape}"
                )
            if labels.dtype != np.int64 or labels.shape != (len(images),):
                raise ValueError(
                    f"expected {part}_labels as int64 ({len(images)},). Received: {labels.dtype} {labels.shape}"
                )
            if labels.min() < 0 or labels.max() >= self.num_classes:
                raise ValueError(
                    f"expected {part}_labels from 0 to {self.num_classes - 1}. "
                    f"Received: {labels.min()} to {labels.max()}"
                )
            for field, array in ((f"{part}_images", images), (f"{part}_labels", labels)):
                view = array.view()
                view.flags.writeable = False  # a recipe that scales in place would spoil the next one's data
                object.__setattr__(self, field, view)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(
                "expected train and test images of one shape. "
                f"Received: {self.train_images.shape[1:]} and {self.test_images.shape[1:]}"
            )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image."""
        _, height, width, channels = self.train_images.shape
        return height, width, channels

    @property
    def num_classes(self) -> int:
        """How many classes the labels tell apart."""
        return len(self.class_names)

    def take(self, n_train: int, n_test: int) -> "Dataset":
        """The first `n_train` train and `n_test` test images, for a quick run.

        The name stays; `describe` says that it is a part. The arrays are views, nothing is copied.

        Raises:
            TypeError: a count is not an integer.
            ValueError: a count is below 1, or above what is there.
        """
        there = (len(self.train_images), len(self.test_images))
        for what, count, most in zip(("n_train", "n_test"), (n_train, n_test), there, strict=True):
            if isinstance(count, bool) or not 1 <= operator.index(count) <= most:
                raise ValueError(f"expected {what} from 1 to {most}. Received: {what}={count!r}")
        return dataclasses.replace(
            self,
            train_images=self.train_images[:n_train],
            train_labels=self.train_labels[:n_train],
            test_images=self.test_images[:n_test],
            test_labels=self.test_labels[:n_test],
            part_of=self.part_of or there,
        )

    def describe(self) -> str:
        """One line: name, how many images of which shape, how many classes, and from where."""
        counts = [f"{len(self.train_images):,}", f"{len(self.test_images):,}"]
        if self.part_of is not None:
            counts = [f"first {n} of {whole:,}" for n, whole in zip(counts, self.part_of, strict=True)]
        shape = "x".join(str(side) for side in self.input_shape)
        return (
            f"{self.name}: {counts[0]} train + {counts[1]} test images of {shape}, "
            f"{self.num_classes} classes, from {self.source}"
        )

    def __repr__(self) -> str:
        return f"<Dataset {self.describe()}>"
