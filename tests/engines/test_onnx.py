"""How a net is quantized for ONNX Runtime, which OpenVINO takes, too."""

import keras
import numpy as np
import onnx as onnx_format
import onnxruntime
import pytest
import tensorflow as tf
from keras import layers, ops

from tfperf.engines import Plan, onnx, openvino
from tfperf.engines.conversions import Conversions
from tfperf.exports.servable import Servable

INT8 = ("int8", "int8_static")


@pytest.fixture(scope="module")
def servable():
    keras.utils.set_random_seed(0)
    return Servable.from_net(keras.Sequential([keras.Input((64,)), keras.layers.Dense(32), keras.layers.Dense(8)]))


@pytest.fixture(params=[True, False], ids=["before_vnni", "vnni"])
def saturates(request, monkeypatch):
    monkeypatch.setattr(onnx, "saturates_int8", lambda: request.param)
    return request.param


@pytest.mark.parametrize("precision", INT8)
def test_weights_have_7_bits_where_8_are_cut_off(precision, saturates, servable, tmp_path):
    folder = Conversions(servable, tmp_path).folder(Plan(engine="onnx", precision=precision))
    net = onnx_format.load(str(folder / onnx.FILE))
    arrays = [onnx_format.numpy_helper.to_array(one) for one in net.graph.initializer]
    weights = [array for array in arrays if array.dtype == np.int8 and array.size > 64]
    assert len(weights) == 2
    most = max(int(np.abs(array.astype(int)).max()) for array in weights)
    assert 60 <= most <= 64 if saturates else 120 <= most <= 128


@pytest.mark.parametrize("module", [onnx, openvino])
def test_only_what_is_quantized_depends_on_the_processor(module, saturates):
    engine = module.__name__.rpartition(".")[2]
    assert module.target(Plan(engine=engine)) == ""
    for precision in INT8 if module is onnx else INT8[1:]:
        assert bool(module.target(Plan(engine=engine, precision=precision))) is saturates


def test_processors_of_both_kinds_may_share_a_cache(servable, tmp_path, monkeypatch):
    conversions = Conversions(servable, tmp_path)
    plans = [
        Plan(engine="onnx"),
        Plan(engine="onnx", precision="int8"),
        Plan(engine="openvino", precision="int8_static"),
    ]
    places = []
    for saturates in (False, True):
        monkeypatch.setattr(onnx, "saturates_int8", lambda: saturates)  # noqa: B023  # called within the loop
        places.append([conversions.place(plan) for plan in plans])
    assert [one == other for one, other in zip(*places, strict=True)] == [True, False, False]


def net(*inside, shape=(16,)):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(shape), *inside])


UNKNOWN_TO_TF2ONNX = {
    "gelu": lambda: net(layers.Dense(8), layers.Activation("gelu"), layers.Dense(4)),
    "celu": lambda: net(layers.Dense(8), layers.Activation("celu"), layers.Dense(4)),
    "erfc": lambda: net(layers.Lambda(tf.math.erfc)),
    "log1p": lambda: net(layers.Lambda(lambda x: ops.log1p(ops.abs(x)))),
    "grouped": lambda: net(layers.Conv2D(8, 3, groups=4), layers.Conv2D(6, 3, groups=2), shape=(8, 8, 8)),
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("name", UNKNOWN_TO_TF2ONNX)
def test_what_tf2onnx_does_not_know_is_told_to_it(name, batch, tmp_path):
    keras_net, file = UNKNOWN_TO_TF2ONNX[name](), tmp_path / "net.onnx"
    onnx.write_onnx(Servable.from_net(keras_net), file, batch)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of the file that is asked for
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(str(file), options)
    x = np.random.default_rng(0).normal(size=(2, *keras_net.input_shape[1:])).astype(np.float32)
    (answers,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(answers, keras_net(x), rtol=1e-5, atol=1e-6)
    optimized = onnx_format.load(options.optimized_model_filepath)
    if name == "gelu":  # in one operation, not five
        assert "Gelu" in {node.op_type for node in optimized.graph.node}
    assert not tf.config.functions_run_eagerly()
