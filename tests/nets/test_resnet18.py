import keras
import pytest

from tfperf.nets import get_net


def convolution(size: int, inputs: int, outputs: int) -> int:
    return size * size * inputs * outputs + outputs


def trainable_parameters(channels: int, num_classes: int) -> int:
    total = convolution(3, channels, 64) + 2 * 64  # the stem, and its scale and offset
    inputs = 64
    for outputs in (64, 128, 256, 512):
        total += convolution(3, inputs, outputs) + 3 * convolution(3, outputs, outputs)  # two blocks of two
        total += 4 * 2 * outputs  # a scale and an offset after each of the four
        if outputs != 64:
            total += convolution(1, inputs, outputs)  # the shortcut of the first block
        inputs = outputs
    return total + 512 * num_classes + num_classes


def count(weights: list) -> int:
    return sum(weight.shape.num_elements() for weight in weights)


def test_parameters() -> None:
    net = get_net("resnet18")
    # moving mean and variance: of the stem, and after each of the four convolutions of a stage
    moving = 2 * 64 + 4 * 2 * (64 + 128 + 256 + 512)
    assert count(net.trainable_weights) == trainable_parameters(channels=1, num_classes=10) == 11_175_818
    assert count(net.non_trainable_weights) == moving == 7_808
    assert net.count_params() == 11_183_626


def test_parameters_of_another_size() -> None:
    net = get_net("resnet18", input_shape=(32, 32, 3), num_classes=100)
    assert count(net.trainable_weights) == trainable_parameters(channels=3, num_classes=100)


def test_convolutions() -> None:
    layers = [layer for layer in get_net("resnet18").layers if isinstance(layer, keras.layers.Conv2D)]
    # 1 + 4 stages x 4, and with the dense layer 18; three shortcuts are not counted in the name
    assert len([layer for layer in layers if layer.kernel_size == (3, 3)]) == 17
    assert len([layer for layer in layers if layer.kernel_size == (1, 1)]) == 3
    assert (layers[0].kernel_size, layers[0].strides) == ((3, 3), (1, 1))


def test_there_is_no_max_pooling() -> None:
    assert not [layer for layer in get_net("resnet18").layers if "MaxPooling" in type(layer).__name__]


@pytest.mark.parametrize(
    ("side", "sides"), [(28, (28, 14, 7, 4)), (32, (32, 16, 8, 4)), (15, (15, 8, 4, 2)), (1, (1, 1, 1, 1))]
)
def test_sizes_of_the_stages(side: int, sides: tuple[int, ...]) -> None:
    net = get_net("resnet18", input_shape=(side, side, 1))
    # PyTorch's (side + 2 - 3) // 2 + 1 is the same half, rounded up
    for stage, (expected, channels) in enumerate(zip(sides, (64, 128, 256, 512), strict=True), start=1):
        output = net.get_layer(f"stage{stage}_block2_relu2").output
        assert output.shape == (None, expected, expected, channels)
