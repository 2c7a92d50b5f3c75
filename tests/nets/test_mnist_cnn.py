import pytest

from tfperf.nets import get_net


def test_parameters() -> None:
    flat = 13 * 13 * 32  # 28 - 2 = 26, pooled 13
    expected = (3 * 3 * 1 * 32 + 32) + (flat * 64 + 64) + (64 * 10 + 10)
    assert get_net("mnist_cnn").count_params() == expected == 347_146


def test_parameters_of_another_size() -> None:
    flat = 7 * 15 * 32  # 17 - 2 = 15, pooled 7; 32 - 2 = 30, pooled 15
    expected = (3 * 3 * 3 * 32 + 32) + (flat * 64 + 64) + (64 * 5 + 5)
    assert get_net("mnist_cnn", input_shape=(17, 32, 3), num_classes=5).count_params() == expected


def test_the_smallest_image() -> None:
    assert get_net("mnist_cnn", input_shape=(4, 4, 1)).get_layer("pool").output.shape == (None, 1, 1, 32)
    for too_small in ((3, 28, 1), (28, 3, 1)):
        with pytest.raises(ValueError, match="height and width of 4 or more"):
            get_net("mnist_cnn", input_shape=too_small)
