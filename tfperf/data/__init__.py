"""Real data sets: found on this machine or fetched, checked by SHA-256, and named in every result.

`load` looks and downloads; `obtain` also asks Debian's archive. `training_batches` feeds a net from memory,
`write_records` makes files to read, and `sorted_examples` compares what pipelines give. Importing this package loads
neither TensorFlow nor Keras nor scikit-learn.
"""

from tfperf.data.dataset import Dataset
from tfperf.data.loading import NAMES, load, obtain
from tfperf.data.pipelines import sorted_examples, training_batches, write_records

__all__ = ["NAMES", "Dataset", "load", "obtain", "sorted_examples", "training_batches", "write_records"]
