"""What data is given as, and what is said of data that are none."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import ExportError
from tfperf.training.examples import first_batch, load_examples


@pytest.fixture
def source(tmp_path):
    """A function that writes one which returns an expression; how it is named."""

    def source(expression):
        file = tmp_path / "own.py"
        file.write_text(f"import numpy as np\nimport tensorflow as tf\ndef data():\n    return {expression}\n")
        return f"{file}:data"

    return source


def test_a_file_of_arrays(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((5, 2)), y=np.arange(5), of_no_interest=1)
    x, y = load_examples(str(tmp_path / "data.npz"))
    assert (x.shape, list(y)) == ((5, 2), [0, 1, 2, 3, 4])


@pytest.mark.parametrize(("x", "y", "received"), [(5, 4, "4, 5"), (0, 0, "0")])
def test_arrays_of_unlike_lengths_or_none_are_refused(source, tmp_path, x, y, received):
    np.savez(tmp_path / "data.npz", x=np.ones((x, 2)), y=np.ones(y))
    for one in (str(tmp_path / "data.npz"), source(f"np.ones(({x}, 2)), np.ones({y})")):
        with pytest.raises(ExportError) as told:
            load_examples(one)
        assert str(told.value) == f"expected {one} to give arrays of as many examples each. Received: {received}"


def test_the_first_batch_of_a_data_set(source):
    name = source("tf.data.Dataset.range(6).map(lambda i: (i, -i)).batch(4)")
    x, y = first_batch(load_examples(name), name)
    assert [*x.numpy()] == [0, 1, 2, 3]
    assert [*y.numpy()] == [0, -1, -2, -3]


def test_a_data_set_without_batches_is_told():
    data = tf.data.Dataset.range(0).map(lambda i: (i, i)).batch(4)
    with pytest.raises(ExportError, match=r"^expected own\.py:data to give batches of \(x, y\)\. Received: none$"):
        first_batch(data, "own.py:data")


def test_a_data_set_whose_code_fails_is_told():
    def fail():
        yield [1.0], [1.0][2]

    spec = tf.TensorSpec((None,), tf.float32)
    data = tf.data.Dataset.from_generator(fail, output_signature=(spec, spec))
    with pytest.raises(ExportError, match=r"^own\.py:data fails when it is read: .*list index out of range") as told:
        first_batch(data, "own.py:data")
    assert "\n" not in str(told.value)
