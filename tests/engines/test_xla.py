"""XLA compiles what the runner calls, and not only what the proof looks at."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.engines import Plan, build, check_runner, xla
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature, TensorForm

PLAN = Plan(engine="xla")


def double(**tensors):
    """Twice the input, by Python, which XLA cannot compile."""
    doubled = tf.numpy_function(lambda x: x * 2, [tensors["x"]], tf.float32)
    return {"y": tf.ensure_shape(doubled, tensors["x"].shape)}


@pytest.fixture
def by_python():
    x, y = (TensorForm(name=name, shape=(None, 3), dtype="float32") for name in "xy")
    return Servable("by_python", Signature(inputs=(x,), outputs=(y,)), double, keeps=[])


def test_what_xla_cannot_compile_is_refused(by_python):
    with pytest.raises(EngineError, match=r"^XLA cannot compile 'by_python': "):
        build(by_python, PLAN)


def test_what_the_runner_calls_is_compiled(by_python, monkeypatch):
    """TensorFlow itself would run the function, and give the right answer."""
    monkeypatch.setattr(xla, "_fusions", lambda servable, plan: "not looked at")
    x = np.ones((2, 3), "float32")
    with build(by_python, Plan(engine="graph")) as runner:
        np.testing.assert_array_equal(runner(x)[0], 2 * x)
    with (
        build(by_python, PLAN) as runner,
        pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations when trying to compile graph"),
    ):
        runner(x)


@pytest.mark.parametrize("batch", [None, 3])
def test_it_is_compiled_for_each_batch_that_comes(batch, servable_of):
    servable = servable_of("lists")
    with build(servable, Plan(engine="xla", batch=batch)) as runner:
        for size in (1, 3, 2) if batch is None else (3,):
            arrays = servable.signature.random_inputs(size)
            assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-5
