"""Examples of a `tf.data.Dataset`, whatever it says of its length and its batches."""

import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import ExportError
from tfperf.training.plan import TrainingPlan
from tfperf.trials.training import task as tasks
from tfperf.trials.training.task import TrainingTask
from tfperf.trials.training.worker import TrainingWorker

NUMBERS = np.arange(100, dtype="float32")[:, None]


def batched(size=64, **options):
    return tf.data.Dataset.from_tensor_slices((NUMBERS, NUMBERS)).batch(size, **options)


def generated(batches=10, seconds=0.0, last=32):
    """Batches of 32, the last perhaps smaller, so many seconds apart, from a generator."""

    def give():
        for number in range(batches):
            time.sleep(seconds)
            rows = np.ones([last if number == batches - 1 else 32, 1], "float32")
            yield rows, rows

    spec = tf.TensorSpec((None, 1), tf.float32)
    return tf.data.Dataset.from_generator(give, output_signature=(spec, spec))


def task_of(data):
    task = TrainingTask("mlp", "data.py:data")
    task.__dict__["data"] = data
    return task


def worker_of(tmp_path, data, steps_per_execution=1):
    """A worker that has opened a model of one layer and such data, which a file holds as an expression."""
    file = tmp_path / "own.py"
    file.write_text(
        f"from {__name__} import *\n"
        "import keras\n"
        "def data():\n"
        f"    return {data}\n"
        "def build():\n"
        "    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "    model.compile(keras.optimizers.SGD(1e-6), 'mse')\n"
        "    return model\n"
    )
    worker, plan = TrainingWorker(), TrainingPlan(steps_per_execution=steps_per_execution)
    opened = worker.open(plan.model_dump_json(), f"{file}:build", f"{file}:data")
    return worker, opened


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_speed_where_the_length_is_not_known(tmp_path, steps_per_execution):
    worker, opened = worker_of(tmp_path, "generated(10, 0.05)", steps_per_execution)
    assert opened["steps_per_epoch"] == 10
    worker.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras's of data that have run out
        examples = worker.prepare(14 * 1024)
        assert examples == 320
        # 32 each 50 ms; where the end of the first call is seen late, the generator has run ahead meanwhile
        assert any(examples / worker.timed(1)["seconds"] < 2 * 640 for _ in range(3))


def test_the_course_of_batches_of_which_the_last_is_smaller(tmp_path):
    worker, _ = worker_of(tmp_path, "batched()")
    assert len(worker.course(0, 8, 2)["losses"]) == 8


@pytest.mark.parametrize("size", [64, 128])
def test_examples_are_full_batches(size):
    x, y = task_of(batched()).examples(size, 3, seed=0)
    np.testing.assert_array_equal(x[:, 0], np.resize(NUMBERS[:, 0], 3 * size))
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("data", "steps", "sizes"),
    [
        (batched(), 5, [64, 36]),
        (batched(), 1, [64]),
        (batched().repeat(), 3, [64, 36, 64]),
        (batched(20, drop_remainder=True), 9, [20] * 5),
        (batched(20, drop_remainder=True).repeat(), 9, [20] * 9),
        (generated(10, last=7), 20, [32] * 9 + [7]),
        (generated(10), 4, [32] * 4),
        (generated(10).filter(lambda x, _: tf.shape(x)[0] > 0), 20, [32] * 10),
    ],
)
def test_batches_to_measure_are_counted(data, steps, sizes):
    measured, counted = task_of(data).measured(steps)
    assert counted == sizes
    assert int(measured.cardinality()) == len(sizes)
    assert [len(x) for x, _ in measured] == sizes


def test_whole_batches_of_a_known_length_are_not_read():
    spec, reads = tf.TensorSpec((32, 1), tf.float32), []

    def give():
        reads.append(1)
        yield from [(np.ones([32, 1]), np.ones([32, 1]))] * 3

    data = tf.data.Dataset.from_generator(give, output_signature=(spec, spec))
    known = data.apply(tf.data.experimental.assert_cardinality(3))
    assert task_of(known).measured(5)[1] == [32] * 3
    assert not reads
    assert task_of(data).measured(5)[1] == [32] * 3
    assert reads


def test_a_data_set_that_ends_earlier_the_next_time_is_read_on():
    lengths = iter([5, 2, 2, 2])
    spec = tf.TensorSpec((None,), tf.float32)
    data = tf.data.Dataset.from_generator(lambda: iter([([1.0], [1.0])] * next(lengths)), output_signature=(spec, spec))
    task = task_of(data)
    measured, sizes = task.measured(5)
    assert sizes == [1] * 5
    assert len(list(measured)) == 5


def test_one_that_can_be_read_once_is_told():
    rest = iter([([1.0], [1.0])] * 3)
    spec = tf.TensorSpec((None,), tf.float32)
    task = task_of(tf.data.Dataset.from_generator(lambda: rest, output_signature=(spec, spec)))
    with pytest.raises(ExportError, match=r"^expected data\.py:data to give the same batches each time\."):
        task.examples(1, 5, seed=0)
    with pytest.raises(ExportError, match=r"^expected data\.py:data to give the same batches each time\."):
        task.measured(5)


def test_steps_of_an_epoch_without_end(monkeypatch):
    monkeypatch.setattr(tasks, "COUNT_SECONDS", 60.0)
    assert task_of(generated(7)).steps_per_epoch(32) == 7
    monkeypatch.setattr(tasks, "COUNT_SECONDS", 0.1)
    assert task_of(batched().repeat()).steps_per_epoch(64) == 2**31
    assert task_of(batched()).steps_per_epoch(64) == 2
    assert task_of(generated(10**9)).steps_per_epoch(32) == 2**31
