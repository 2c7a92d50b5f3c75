"""What a result file keeps of an explanation."""

import pytest
from pydantic import ValidationError

from tfperf.errors import ResultFileError
from tfperf.explaining.explanation import Explanation, LayerTime
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure.results import read_document, write_result


def test_it_is_read_as_it_was_written(explanation, explained, layer_of_net, tmp_path):
    batches = (explained(), explained(batch=64, layers=(layer_of_net("a" * 200),)))
    found = explanation(batches=batches, training=True)
    write_result(tmp_path / "e.json", found)
    assert read_document(tmp_path / "e.json", Explanation) == found


def test_another_file_is_refused(tmp_path):
    (tmp_path / "e.json").write_text('{"format": "tfperf result", "version": 1}')
    with pytest.raises(ResultFileError, match="tfperf explanation"):
        read_document(tmp_path / "e.json", Explanation)


def test_a_batch_at_least(explanation):
    with pytest.raises(ValidationError):
        explanation(batches=())


def test_big_layers_come_longest_first_and_near_is_counted(explained, layer_of_net):
    layers = (
        layer_of_net("small", seconds=1e-6, predicted=9.0),
        layer_of_net("near", seconds=40e-6, predicted=50e-6),
        layer_of_net("far", seconds=59e-6, predicted=10e-6),
    )
    found = explained(layers=layers)
    assert [layer.name for layer in found.big_layers] == ["far", "near"]
    assert found.near == 1
    assert found.big_layers[1].error == pytest.approx(0.25)


def test_the_bound_of_a_layer_and_of_a_call(layer_of_net, call_of_net):
    assert layer_of_net().bound is Bound.COMPUTE
    assert call_of_net().bound is Bound.OVERHEAD
    assert call_of_net().overhead_share == pytest.approx(0.9)
    assert layer_of_net(bytes=0).intensity == float("inf")
    assert layer_of_net(seconds=0.0).error == 0.0


def test_the_seconds_of_a_layer_are_said_to_be_what_they_are():
    """They are those of `Kernel.seconds`: the shortest runs."""
    assert "shortest runs" in LayerTime.model_fields["seconds"].description
