"""Real data sets: found on this machine or fetched, checked by SHA-256, and named in every result.

`load` looks and downloads; `obtain` also asks Debian's archive. Importing this package loads neither
TensorFlow nor Keras nor scikit-learn.
"""

from tfperf.data.dataset import Dataset
from tfperf.data.loading import NAMES, load, obtain

__all__ = ["NAMES", "Dataset", "load", "obtain"]
