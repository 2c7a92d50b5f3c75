"""PyTorch: eager, TorchScript, torch.compile.

As its performance guide for inference on the CPU has it: inference mode, memory with the channels last, and for
bfloat16 the whole net and its input in it. Inputs are held as tensors; answers become NumPy arrays.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.given import Given, Loaded
from benchmarks.peers.torch_nets import BUILDERS, copy_weights

__all__ = ["load"]

CALLS_TO_SETTLE = 5
"""Warm-up calls of TorchScript, which watches the first calls and then compiles once more."""

INFERENCE = torch.inference_mode()
"""Entered once for all calls: entering it for each would be a twentieth of the shortest."""


def load(given: Given) -> Loaded:
    """Make it ready to call."""
    INFERENCE.__enter__()
    dtype = getattr(torch, given.precision)
    module = BUILDERS[given.net]()
    with np.load(given.folder / "weights.npz", allow_pickle=False) as weights:
        copy_weights(module, weights)
    module = module.eval().to(dtype).to(memory_format=torch.channels_last)

    def prepare(array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(dtype)
        if tensor.ndim < 4:
            return tensor
        return tensor.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    with np.load(given.folder / "inputs.npz", allow_pickle=False) as inputs:
        function = WAYS[given.way](module, prepare(inputs["0"][:1]))
    words = f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
    if dtype is torch.float32:
        return Loaded(lambda x: function(x).numpy(), prepare, words)
    return Loaded(lambda x: function(x).float().numpy(), prepare, words)


def _traced(module: torch.nn.Module, x: torch.Tensor) -> Any:
    return torch.jit.freeze(torch.jit.trace(module, x))


def _settled(function: Any, x: torch.Tensor) -> Any:
    for _ in range(CALLS_TO_SETTLE):
        function(x)
    return function


WAYS: dict[str, Callable[[torch.nn.Module, torch.Tensor], Any]] = {
    "eager": lambda module, _: module,
    "freeze": lambda module, x: _settled(_traced(module, x), x),
    "optimize_for_inference": lambda module, x: _settled(torch.jit.optimize_for_inference(_traced(module, x)), x),
    "compile": lambda module, _: torch.compile(module),
    "compile, freezing": lambda module, _: torch.compile(module, options={"freezing": True}),
}
