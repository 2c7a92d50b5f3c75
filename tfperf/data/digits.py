"""The 1,797 real handwritten digits that scikit-learn's wheel holds (UCI "Optical Recognition", 8x8)."""

import hashlib

import numpy as np

from tfperf.data.dataset import Dataset
from tfperf.errors import DataError

__all__ = ["load_digits"]

N_TRAIN = 1_437  # the first 80 %; the other 360 are for testing, in scikit-learn's order
_LARGEST = 16  # scikit-learn's pixels are counts from 0 to 16
_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def load_digits() -> Dataset:
    """The digits as uint8 images of 8x8x1: 1,437 to train and 360 to test, always the same ones.

    The pixels, 0 to 16 in scikit-learn, are stretched to 0 to 255 and rounded, so that dividing by 255
    gives 0 to 1 as with the other data sets.

    Raises:
        DataError: scikit-learn is not installed, or its digits are not the ones known here.
    """
    try:
        import sklearn
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f"digits comes with scikit-learn, which cannot be imported ({error}); run pip install 'tfperf[data]'"
        ) from error
    bunch = datasets.load_digits()
    pixels = bunch.images.astype(np.uint8)  # (1797, 8, 8)
    labels = bunch.target.astype(np.int64)  # (1797,)
    found = hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    if found != _SHA256:
        raise DataError(
            f"the digits of scikit-learn {sklearn.__version__} are not the ones tfperf knows: expected SHA-256 "
            f"{_SHA256}, found {found}; reinstall it with pip install --force-reinstall 'tfperf[data]'"
        )
    scaled = (pixels.astype(np.uint16) * 255 + _LARGEST // 2) // _LARGEST  # rounded; 16 becomes 255
    images = scaled.astype(np.uint8)[..., np.newaxis]  # (1797, 8, 8, 1)
    return Dataset(
        name="digits",
        source=f"scikit-learn {sklearn.__version__}",
        class_names=tuple("0123456789"),
        train_images=images[:N_TRAIN],
        train_labels=labels[:N_TRAIN],
        test_images=images[N_TRAIN:],
        test_labels=labels[N_TRAIN:],
    )
