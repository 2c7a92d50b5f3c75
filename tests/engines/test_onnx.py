"""How a net is quantized for ONNX Runtime, which OpenVINO takes, too."""

import keras
import numpy as np
import onnx as onnx_format
import pytest

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
