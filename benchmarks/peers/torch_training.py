"""PyTorch, training: eager, `torch.compile`, bfloat16 by autocast.

As its performance guide has it: memory with the channels last, one fused Adam for all weights, gradients set to None.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.peers.given import Given, Loaded
from benchmarks.peers.torch_nets import BUILDERS, copy_weights

__all__ = ["load"]


def load(given: Given) -> Loaded:
    """Make it ready: a call trains for an epoch over all examples, in another order each time, and tells the loss."""
    module = BUILDERS[given.net]()
    with np.load(given.folder / "weights.npz", allow_pickle=False) as weights:
        copy_weights(module, weights)
    module = module.train().to(memory_format=torch.channels_last)
    with np.load(given.folder / "examples.npz", allow_pickle=False) as examples:
        inputs, labels = torch.from_numpy(examples["inputs"]), torch.from_numpy(examples["labels"].astype("int64"))
        batch_size, rate = int(examples["batch_size"]), float(examples["rate"])
    if not inputs.is_floating_point():  # token ids
        inputs = inputs.long()
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(module.parameters(), rate, eps=1e-7, fused=True)
    net = torch.compile(module) if "compile" in given.way else module
    half = given.precision == "bfloat16"

    def epoch(_: NDArray[Any]) -> NDArray[Any]:
        total = torch.zeros([])
        batches = torch.randperm(len(inputs)).split(batch_size)
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs = net(inputs[batch])
            loss = cross_entropy(outputs.float(), labels[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return (total / len(batches)).reshape(1, 1).numpy()

    words = f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
    return Loaded(epoch, lambda number: number, words)
