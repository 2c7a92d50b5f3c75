import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.nets import get_net


def test_parameters() -> None:
    # the shapes that the source writes out: W1 to W4 and b1 to b4
    expected = (20 * 1 * 3 * 3 + 20) + (50 * 20 * 5 * 5 + 50) + (800 * 128 + 128) + (128 * 10 + 10)
    assert get_net("lenet").count_params() == expected == 129_068


def test_pooling_averages() -> None:
    names = [type(layer).__name__ for layer in get_net("lenet").layers]
    assert names.count("AveragePooling2D") == 2
    assert "MaxPooling2D" not in names


@settings(max_examples=20, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), channels=st.integers(1, 4))
def test_any_image_is_big_enough_or_an_error(height: int, width: int, channels: int) -> None:
    sides = [((side - 2) // 2 - 4) // 2 for side in (height, width)]
    if min(sides) < 1:
        with pytest.raises(ValueError, match="height and width of 14 or more"):
            get_net("lenet", input_shape=(height, width, channels))
        return
    net = get_net("lenet", input_shape=(height, width, channels))
    assert net.get_layer("flatten").output.shape == (None, sides[0] * sides[1] * 50)


@pytest.mark.parametrize("side", [13, 14])
def test_the_smallest_image(side: int) -> None:
    if side == 14:
        assert get_net("lenet", input_shape=(side, side, 1)).get_layer("pool_2").output.shape == (
            None,
            1,
            1,
            50,
        )
    else:
        with pytest.raises(ValueError, match="14 or more"):
            get_net("lenet", input_shape=(side, side, 1))
