"""`tfperf.explain` as a whole, on a machine made up of round numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import ExportError
from tfperf.explaining import explain
from tfperf.measure.results import read_document, write_result
from tfperf.training import fuse

pytestmark = pytest.mark.usefixtures("kernels_by_size")


@pytest.fixture
def explained_net(ceilings, tmp_path):
    """A function that explains, with short measurements."""

    def explained_net(model, **options):
        return explain(model, ceilings=ceilings, cache=tmp_path / "cache", time_limit=0.3, **options)

    return explained_net


@pytest.fixture(scope="module")
def net():
    layers = [
        keras.layers.Conv2D(8, 3, name="conv"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(4, name="logits"),
    ]
    return keras.Sequential([keras.Input((8, 8, 3), name="images"), *layers], name="small")


def test_a_net_at_two_batch_sizes(explained_net, net, tmp_path):
    told = []

    class Watcher:
        def begin(self, step):
            told.append(step)

        def show(self, progress):
            assert progress.time_limit == 0.3

        def know(self, sentence):
            told.append(sentence)

    found = explained_net(net, batch=(1, 4), watcher=Watcher())
    assert (found.model, found.opened_as, found.training) == ("small", "keras.Model small", False)
    assert [one.batch for one in found.batches] == [1, 4]
    assert found.traces == 2
    assert told[0] == "ceilings of this machine"
    assert "batch 4: what XLA makes of it" in told
    first = next(place for place, words in enumerate(told) if words.startswith("graph: "))
    assert told[first + 1] == "batch 1: the kernels alone"
    for explained in found.batches:
        assert [call.way for call in explained.calls] == ["eager", "graph"]
        names = [layer.name for layer in explained.layers]
        assert names[0] == "conv"
        assert "logits" in names
        products = 2 * explained.batch * (6 * 6 * 8 * 27 + 288 * 4)
        assert products < explained.flops < 2 * products
        assert explained.xla.compiled
        assert explained.xla.kernels < explained.xla.operations
        assert explained.interventions[0].what == "a graph in place of eager calls"
        assert len(explained.interventions) == 2
        assert explained.verdicts
        assert all(one.measured is None for one in explained.techniques)
    write_result(tmp_path / "e.json", found)
    assert read_document(tmp_path / "e.json", type(found)) == found


def test_by_another_batch_what_lies_between_the_kernels_is_expected_to_stay(explained_net, net, monkeypatch):
    def by_numbers(operation, _):
        return 1e-6 * operation.outputs[0].shape.num_elements()

    monkeypatch.setattr("tfperf.hardware.kernels.times.alone", by_numbers)
    # Which kernels are small is decided by how long they took; one that is small in one run only is no matter here
    monkeypatch.setattr("tfperf.hardware.kernels.prediction.SMALL", 0.0)
    half, whole = explained_net(net, batch=(2, 4)).batches
    inside = {one.batch: whole.disturbance * sum(layer.predicted for layer in one.layers) for one in (half, whole)}
    between = {call.way: call.between for call in whole.calls}["graph"]
    change = whole.interventions[1]
    assert change.what == "batch 2 in place of 4, as a graph"
    assert 0.4 < inside[2] / inside[4] < 0.6
    assert change.expected == pytest.approx((between + inside[2]) / (between + inside[4]))


@pytest.mark.parametrize(("stage", "left"), [("alone", "batch 64"), ("verdicts.compare", "the test")])
def test_ctrl_c_gives_what_is_known(explained_net, net, monkeypatch, stage, left):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    place = "tfperf.hardware.kernels.times.alone" if stage == "alone" else f"tfperf.explaining.{stage}"
    monkeypatch.setattr(place, interrupt)
    found = explained_net(net, batch=(1, 2))
    assert [one.batch for one in found.batches] == [1]
    (explained,) = found.batches
    assert explained.verdicts[1].startswith("graph: ")
    assert explained.interventions == ()
    (doubt,) = (doubt for doubt in found.doubts if doubt.name == "left out")
    assert doubt.words.startswith("interrupted: left out ")
    assert left in doubt.words
    assert doubt.words.endswith("all of batch 2")


def test_ctrl_c_before_anything_is_known_ends_it(explained_net, net, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfperf.explaining.examining.compare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        explained_net(net)


def test_what_there_is_no_time_for_is_left_out_and_named(explained_net, net):
    found = explained_net(net, limit=0.5)
    (explained,) = found.batches
    assert [call.way for call in explained.calls] == ["eager", "graph"]
    assert not explained.xla.compiled
    assert "for lack of time" in explained.xla.reason
    (doubt,) = (doubt for doubt in found.doubts if doubt.name == "left out")
    assert doubt.words.startswith("the time limit was too short: left out batch 64")


def test_what_is_suggested_can_be_tried(explained_net, net):
    (explained,) = explained_net(net, try_techniques=True).batches
    tried = {one.way: one.measured for one in explained.techniques if one.measured}
    assert "graph" in tried
    assert tried["graph"].estimate > 1
    for technique in explained.techniques:
        if technique.way in ("int8", "another engine"):
            assert technique.measured is None


def test_training_has_its_gradients(explained_net, net):
    forward, training = explained_net(net), explained_net(net, training=True)
    assert training.training
    assert training.batches[0].flops > 1.9 * forward.batches[0].flops
    assert not {one.recipe for one in training.batches[0].techniques} & {"deploy_engines", "quantize_int8"}


def test_a_saved_model_has_no_eager_call(explained_net, net, tmp_path):
    net.export(tmp_path / "saved", verbose=False)
    (explained,) = explained_net(str(tmp_path / "saved")).batches
    assert [call.way for call in explained.calls] == ["graph"]
    assert explained.comparison is None
    assert len(explained.layers) >= 2


def test_layers_of_nets_within_a_net_are_named(explained_net, net):
    outer = keras.Sequential([keras.Input((8, 8, 3)), net, keras.layers.Dense(2, name="last")])
    names = [layer.name for layer in explained_net(outer).batches[0].layers]
    assert {"conv", "last"} <= set(names)


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": ()}, {"threads": 0}, {"batch": (1, -1)}])
def test_numbers_under_one_are_refused(explained_net, net, options):
    with pytest.raises(ValueError, match="expected batch sizes and threads of 1 or more"):
        explained_net(net, **options)


def test_what_is_no_model_is_refused(explained_net):
    with pytest.raises(ExportError, match="Received: nonsense"):
        explained_net("nonsense")
    with pytest.raises(TypeError, match=r"expected a keras\.Model, or what names one"):
        explained_net(3)


class Types(keras.layers.Layer):
    """Notes the type of its inputs, and whether it is called eagerly."""

    def __init__(self, **options):
        super().__init__(**options)
        self.__dict__["seen"] = set()  # past Keras, which tracks sets

    def call(self, inputs):
        self.__dict__["seen"].add((tf.executing_eagerly(), inputs.dtype.name))
        return inputs


@pytest.fixture
def mixed():
    """A net under a mixed policy with a fused layer, and what its layer notes."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        types = Types()
        stack = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), types, keras.layers.Flatten()]
        stack += [keras.layers.Dropout(0.5), keras.layers.Dense(4, kernel_constraint="unit_norm")]
        net = keras.Sequential([keras.Input((8, 8, 3)), *stack])
    finally:
        keras.config.set_dtype_policy("float32")
    fuse(net, batch_size=2, measure=False)
    types.__dict__["seen"].clear()
    return net, types.__dict__["seen"]


def test_eagerly_and_as_a_graph_a_net_under_a_mixed_policy_is_measured_in_float32(explained_net, mixed):
    net, seen = mixed
    own = [(type(layer), layer.dtype_policy.name) for layer in net._flatten_layers()]
    found = explained_net(net, limit=0.5)
    assert {dtype for eager, dtype in seen if eager} == {"float32"}
    assert (False, "float32") in seen
    assert [(type(layer), layer.dtype_policy.name) for layer in net._flatten_layers()] == own
    doubts = {one.name: one.words for one in found.doubts}
    assert doubts["float32"] == "measured in float32, as an export computes, and not in its own mixed_bfloat16"
    assert doubts["Keras's form"] == "measured with 3 fused layers in Keras's form, as an export computes"


def test_what_is_measured_of_training_is_the_net_as_it_is_and_it_stays_so(explained_net, mixed):
    net, seen = mixed
    before = [variable.numpy() for variable in net.variables]
    found = explained_net(net, batch=2, training=True, limit=1.0)
    assert {dtype for _, dtype in seen if dtype != "float32"} == {"bfloat16"}
    assert (True, "bfloat16") in seen
    assert (True, "float32") not in seen
    for variable, value in zip(net.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    assert not {"float32", "Keras's form"} & {one.name for one in found.doubts}


def test_a_net_stays_as_it_was_when_training_is_interrupted(explained_net, mixed, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    net, _ = mixed
    before = [variable.numpy() for variable in net.variables]
    monkeypatch.setattr("tfperf.hardware.kernels.times.alone", interrupt)
    explained_net(net, batch=2, training=True)
    for variable, value in zip(net.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
