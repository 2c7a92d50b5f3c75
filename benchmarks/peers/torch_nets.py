"""The nets in PyTorch, channels first in shape, with the weights of their Keras originals.

A module's name, with "_" for each ".", is that of the Keras layer whose weights it takes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["BUILDERS", "copy_weights"]


class Mlp(nn.Module):
    """The twin of tfperf.nets.mlp."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_1, self.hidden_2, self.logits = nn.Linear(512, 256), nn.Linear(256, 128), nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(functional.relu(self.hidden_2(functional.relu(self.hidden_1(x)))))


class MnistCnn(nn.Module):
    """The twin of tfperf.nets.mnist_cnn."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)
        self.hidden, self.logits = nn.Linear(13 * 13 * 32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)  # (batch, 32, 13, 13)
        x = x.permute(0, 2, 3, 1).flatten(1)  # in the order of Keras; a view, as the memory is channels last
        return self.logits(functional.relu(self.hidden(x)))


class Lenet(nn.Module):
    """The twin of tfperf.nets.lenet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(1, 20, 3), nn.Conv2d(20, 50, 5)
        self.hidden, self.logits = nn.Linear(4 * 4 * 50, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(functional.relu(self.conv_1(x)), 2)  # (batch, 20, 13, 13)
        x = functional.avg_pool2d(functional.relu(self.conv_2(x)), 2)  # (batch, 50, 4, 4)
        x = x.permute(0, 2, 3, 1).flatten(1)  # in the order of Keras
        return self.logits(functional.relu(self.hidden(x)))


class SameConv(nn.Conv2d):
    """A convolution with the padding "same" of TensorFlow: the odd pixel at the end, where PyTorch can only be even."""

    def __init__(self, given: int, made: int, kernel: int, *, stride: int = 1, size: int, **options: Any) -> None:
        """Settle the padding.

        Args:
            size: height and width of the input, which decide it.
        """
        total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        self.uneven = total % 2 == 1
        super().__init__(given, made, kernel, stride, padding=0 if self.uneven else total // 2, **options)
        self.pads = (total // 2, total - total // 2) * 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.pad(x, self.pads) if self.uneven else x)


class ResidualBlock(nn.Module):
    """Two convolutions and the shortcut around them."""

    def __init__(self, given: int, made: int, size: int, *, halve: bool) -> None:
        super().__init__()
        stride = 2 if halve else 1
        self.conv1 = SameConv(given, made, 3, stride=stride, size=size)
        self.norm1 = nn.BatchNorm2d(made, eps=1e-5)
        self.conv2 = nn.Conv2d(made, made, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(made, eps=1e-5)
        self.shortcut = nn.Conv2d(given, made, 1, stride) if halve else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Resnet18(nn.Module):
    """The twin of tfperf.nets.resnet18."""

    def __init__(self) -> None:
        super().__init__()
        self.stem_conv, self.stem_norm = nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64, eps=1e-5)
        self.blocks: list[str] = []
        given, size = 64, 28
        for stage, made in enumerate((64, 128, 256, 512), start=1):
            for number in (1, 2):
                halve = number == 1 and stage > 1
                self.blocks.append(f"stage{stage}_block{number}")
                self.add_module(self.blocks[-1], ResidualBlock(given, made, size, halve=halve))
                given, size = made, -(-size // 2) if halve else size
        self.logits = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem_norm(self.stem_conv(x)))
        for name in self.blocks:
            x = getattr(self, name)(x)
        return self.logits(x.mean((2, 3)))


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, project."""

    def __init__(self, given: int, made: int, size: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        wide = given * expansion
        self.adds = stride == 1 and given == made
        if expansion > 1:
            self.expand, self.expand_BN = nn.Conv2d(given, wide, 1, bias=False), _norm(wide)
        else:
            self.expand = self.expand_BN = None
        self.depthwise = SameConv(wide, wide, 3, stride=stride, size=size, groups=wide, bias=False)
        self.depthwise_BN = _norm(wide)
        self.project, self.project_BN = nn.Conv2d(wide, made, 1, bias=False), _norm(made)

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else functional.relu6(self.expand_BN(self.expand(x)))
        y = functional.relu6(self.depthwise_BN(self.depthwise(y)))
        y = self.project_BN(self.project(y))
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """The twin of MobileNetV2 of keras.applications, width 1."""

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    """Expansion, channels, blocks, stride of the first of them."""

    def __init__(self, pixels: int = 224, classes: int = 1000) -> None:
        super().__init__()
        self.Conv1, self.bn_Conv1 = SameConv(3, 32, 3, stride=2, size=pixels, bias=False), _norm(32)
        self.blocks: list[str] = []
        given, size = 32, pixels // 2
        for expansion, made, count, first_stride in self.STAGES:
            for number in range(count):
                stride = first_stride if number == 0 else 1
                block = InvertedResidual(given, made, size, expansion=expansion, stride=stride)
                self.blocks.append(f"block_{len(self.blocks)}" if self.blocks else "expanded_conv")
                self.add_module(self.blocks[-1], block)
                given, size = made, size // stride
        self.Conv_1, self.Conv_1_bn = nn.Conv2d(320, 1280, 1, bias=False), _norm(1280)
        self.predictions = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.bn_Conv1(self.Conv1(x)))
        for name in self.blocks:
            x = getattr(self, name)(x)
        x = functional.relu6(self.Conv_1_bn(self.Conv_1(x)))
        return self.predictions(x.mean((2, 3)))


class SqueezingBlock(nn.Module):
    """Expand, filter each channel by itself, weigh the channels, project; left out at random in training."""

    def __init__(
        self, given: int, made: int, size: int, *, kernel: int, expansion: int, stride: int, drop_rate: float
    ) -> None:
        super().__init__()
        wide, squeezed = given * expansion, max(1, given // 4)
        self.adds, self.drop_rate = stride == 1 and given == made, drop_rate
        if expansion > 1:
            self.expand_conv, self.expand_bn = nn.Conv2d(given, wide, 1, bias=False), _norm(wide)
        else:
            self.expand_conv = self.expand_bn = None
        self.dwconv = SameConv(wide, wide, kernel, stride=stride, size=size, groups=wide, bias=False)
        self.bn = _norm(wide)
        self.se_reduce, self.se_expand = nn.Conv2d(wide, squeezed, 1), nn.Conv2d(squeezed, wide, 1)
        self.project_conv, self.project_bn = nn.Conv2d(wide, made, 1, bias=False), _norm(made)

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand_conv is None else functional.silu(self.expand_bn(self.expand_conv(x)))
        y = functional.silu(self.bn(self.dwconv(y)))
        squeezed = functional.silu(self.se_reduce(y.mean((2, 3), keepdim=True)))
        y = self.project_bn(self.project_conv(y * torch.sigmoid(self.se_expand(squeezed))))
        if not self.adds:
            return y
        if self.training and self.drop_rate:
            keeps = torch.rand(len(y), 1, 1, 1) >= self.drop_rate
            y = y * keeps / (1 - self.drop_rate)
        return x + y


class EfficientNetB0(nn.Module):
    """The twin of EfficientNetB0 of keras.applications, which takes pixels of 0 to 255."""

    STAGES = (
        (3, 1, 16, 1, 1),
        (3, 2, 24, 6, 2),
        (5, 2, 40, 6, 2),
        (3, 3, 80, 6, 2),
        (5, 3, 112, 6, 1),
        (5, 4, 192, 6, 2),
        (3, 1, 320, 6, 1),
    )
    """Kernel, blocks, channels, expansion, stride of the first of them."""

    def __init__(self, pixels: int = 224, classes: int = 1000) -> None:
        super().__init__()
        self.stem_conv, self.stem_bn = SameConv(3, 32, 3, stride=2, size=pixels, bias=False), _norm(32)
        self.blocks: list[str] = []
        given, size, total = 32, pixels // 2, sum(count for _, count, *_ in self.STAGES)
        for stage, (kernel, count, made, expansion, first_stride) in enumerate(self.STAGES, start=1):
            for number in range(count):
                stride, drop_rate = first_stride if number == 0 else 1, 0.2 * len(self.blocks) / total
                options = {"kernel": kernel, "expansion": expansion, "stride": stride, "drop_rate": drop_rate}
                self.blocks.append(f"block{stage}{'abcd'[number]}")
                self.add_module(self.blocks[-1], SqueezingBlock(given, made, size, **options))
                given, size = made, size // stride
        self.top_conv, self.top_bn = nn.Conv2d(320, 1280, 1, bias=False), _norm(1280)
        self.predictions = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.stem_bn(self.stem_conv(x / 255)))
        for name in self.blocks:
            x = getattr(self, name)(x)
        x = functional.silu(self.top_bn(self.top_conv(x))).mean((2, 3))
        return self.predictions(functional.dropout(x, 0.2, self.training))


class Attention(nn.Module):
    """The twin of Keras's MultiHeadAttention, of a sequence with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attention_output = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.attention_output(seen.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """The twin of tfperf.nets.transformer."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(256, 128), nn.Embedding(64, 128)
        self.depth = depth
        for index in range(1, depth + 1):
            for name, module in {
                "norm1": nn.LayerNorm(128, eps=1e-3),
                "attention": Attention(128, 4),
                "norm2": nn.LayerNorm(128, eps=1e-3),
                "hidden": nn.Linear(128, 512),
                "output": nn.Linear(512, 128),
            }.items():
                setattr(self, f"block{index}_{name}", module)
        self.norm, self.logits = nn.LayerNorm(128, eps=1e-3), nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embedding(ids) + self.position_embedding.weight
        for index in range(1, self.depth + 1):
            norm1, attention, norm2, hidden, output = (
                getattr(self, f"block{index}_{name}") for name in ("norm1", "attention", "norm2", "hidden", "output")
            )
            x = x + attention(norm1(x))
            x = x + output(functional.relu(hidden(norm2(x))))
        return self.logits(self.norm(x).mean(1))


class Lstm(nn.Module):
    """The twin of nets.lstm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(256, 64), nn.LSTM(64, 128, batch_first=True)
        self.logits = nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(ids))
        return self.logits(outputs[:, -1])


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


BUILDERS = {
    "lenet": Lenet,
    "mlp": Mlp,
    "mnist_cnn": MnistCnn,
    "resnet18": Resnet18,
    "transformer": Transformer,
    "MobileNetV2": MobileNetV2,
    "mobilenetv2_96": lambda: MobileNetV2(96, 10),
    "efficientnetb0_96": lambda: EfficientNetB0(96, 10),
    "lstm": Lstm,
}


PARAMETERS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embeddings": "weight",
}
"""Kind of a Keras weight -> what PyTorch calls it."""

OF_LSTM = {"kernel": "weight_ih_l0", "recurrent_kernel": "weight_hh_l0", "bias": "bias_ih_l0"}
"""The same of an LSTM. Its gates have the same order; PyTorch has a second bias, which begins as 0."""

BEGINS_AS_ZERO = ("num_batches_tracked", "bias_hh_l0")


def copy_weights(net: nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Give a net here the weights of its original.

    Args:
        weights: of `nets.weights_of`.

    Raises:
        KeyError: a weight is for no module here.
        RuntimeError: a weight has another shape, or one is missing.
    """
    modules = {name.replace(".", "_"): (name, module) for name, module in net.named_modules()}
    state = {name: torch.zeros_like(one) for name, one in net.state_dict().items() if name.endswith(BEGINS_AS_ZERO)}
    for key, weight in weights.items():
        layer, kind = key.rsplit("/", 1)
        if layer == "normalization":  # of pixels, by a mean of 0 and a variance of 1 where nothing was learnt
            continue
        name, module = modules[layer]
        names = OF_LSTM if isinstance(module, nn.LSTM) else PARAMETERS
        state[f"{name}.{names[kind]}"] = torch.from_numpy(_in_order_of_torch(weight, module))
    net.load_state_dict(state)


def _in_order_of_torch(weight: NDArray[Any], module: nn.Module) -> NDArray[Any]:
    if weight.ndim == 4:  # (height, width, in, out), and of a depthwise one (height, width, channels, 1)
        weight = weight.transpose((2, 3, 0, 1) if module.groups > 1 else (3, 2, 0, 1))
    elif isinstance(module, nn.Linear):  # (in, out), with the heads of attention on axes of their own
        weight = weight.reshape(module.in_features, -1).T if weight.size > module.out_features else weight.reshape(-1)
    elif isinstance(module, nn.LSTM):
        weight = weight.T  # (in, all gates)
    return np.ascontiguousarray(weight)
