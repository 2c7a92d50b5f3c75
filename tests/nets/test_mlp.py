import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.nets import get_net


def test_parameters() -> None:
    expected = (512 * 256 + 256) + (256 * 128 + 128) + (128 * 2 + 2)
    assert get_net().count_params() == expected == 164_482


def test_layers_of_the_source() -> None:
    layers = get_net().layers
    assert [(layer.units, layer.activation.__name__) for layer in layers] == [
        (256, "relu"),
        (128, "relu"),
        (2, "linear"),
    ]


@settings(max_examples=20, deadline=None)
@given(
    features=st.integers(1, 50),
    hidden_units=st.lists(st.integers(1, 40), max_size=4),
    num_classes=st.integers(1, 20),
)
def test_parameters_of_any_size(features: int, hidden_units: list[int], num_classes: int) -> None:
    net = get_net("mlp", input_shape=(features,), hidden_units=hidden_units, num_classes=num_classes)
    widths = [features, *hidden_units, num_classes]
    matrices = sum(math.prod(pair) for pair in itertools.pairwise(widths))
    assert net.count_params() == matrices + sum(widths[1:])


@pytest.mark.parametrize("hidden_units", [(0,), (3, -1), 3, (2.5,), None])
def test_hidden_units_are_positive_whole_numbers(hidden_units: object) -> None:
    with pytest.raises(ValueError, match="expected hidden_units to be a tuple of whole numbers"):
        get_net("mlp", hidden_units=hidden_units)
