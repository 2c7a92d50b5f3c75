"""What each data set's files must hold: the one table of names, sizes and SHA-256 sums.

Fashion-MNIST's sums are of the *decompressed* files, because Debian packs them anew. Its compressed
streams are nevertheless those of Zalando's own files, byte for byte: with the original gzip header in front,
the MD5 sums are the ones that Zalando publishes (tests/data/test_real_data.py does this).
MNIST's sum is the one in keras.datasets.mnist.
"""

import dataclasses

__all__ = ["FASHION_MNIST", "IMAGE_SETS", "MNIST", "ExpectedFile", "ImageSet"]

_KERAS_FILES = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"  # where Keras downloads from


@dataclasses.dataclass(frozen=True)
class ExpectedFile:
    """A file by its contents. For a .gz file these are the decompressed ones, however it was packed.

    Attributes:
        filename: its name, without folder.
        size: bytes of its contents.
        sha256: of its contents, 64 hexadecimal digits.
    """

    filename: str
    size: int
    sha256: str

    @property
    def packed_limit(self) -> int:
        """The most bytes that the file itself may have; gzip adds little even where it cannot compress."""
        return self.size + self.size // 100 + 1024 if self.filename.endswith(".gz") else self.size


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """A data set that comes as files.

    Attributes:
        name: as given to `tfperf.data.load`.
        folder: below a `datasets` folder, as Keras lays it out; "" is that folder itself.
        url: https folder to download from, with a slash at its end.
        files: one .npz with x_train, y_train, x_test and y_test; or four idx.gz files: train images,
            train labels, test images, test labels.
        image_shape: (height, width).
        n_train: how many train images.
        n_test: how many test images.
        class_names: in order of the labels.
        debian_package: the Debian package that holds it, where there is one.
    """

    name: str
    folder: str
    url: str
    files: tuple[ExpectedFile, ...]
    image_shape: tuple[int, int]
    n_train: int
    n_test: int
    class_names: tuple[str, ...]
    debian_package: str | None = None


MNIST = ImageSet(
    name="mnist",
    folder="",
    url=_KERAS_FILES,
    files=(ExpectedFile("mnist.npz", 11_490_434, "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"),),
    image_shape=(28, 28),
    n_train=60_000,
    n_test=10_000,
    class_names=tuple("0123456789"),
)

FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    folder="fashion-mnist",
    url=_KERAS_FILES,
    files=(
        ExpectedFile(
            "train-images-idx3-ubyte.gz",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        ExpectedFile(
            "train-labels-idx1-ubyte.gz",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        ExpectedFile(
            "t10k-images-idx3-ubyte.gz",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        ExpectedFile(
            "t10k-labels-idx1-ubyte.gz",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    image_shape=(28, 28),
    n_train=60_000,
    n_test=10_000,
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    debian_package="dataset-fashion-mnist",
)

IMAGE_SETS: dict[str, ImageSet] = {spec.name: spec for spec in (MNIST, FASHION_MNIST)}
