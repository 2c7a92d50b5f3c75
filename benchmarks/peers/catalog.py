"""Which peers there are: frameworks that run a net, each as its documentation recommends."""

import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["FLOAT32", "NETS", "PEERS", "PYTHON", "REDUCED", "ROOT", "TOLERANCES", "Peer", "why_not_set_up"]

NETS = ("mlp", "mnist_cnn", "resnet18", "MobileNetV2")
"""That are compared; the first three are those of `tfperf.get_net`."""

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the checkout."""

FOREIGN = ROOT / ".venv-peers"
"""Where `make peers` installs the peers that tfperf itself does not use."""

PYTHON = dict.fromkeys(("torch_peer", "jax_peer", "torch_training"), FOREIGN / "bin" / "python")
"""Module -> the Python that has its framework; of all others this one."""

ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    "TORCHINDUCTOR_CACHE_DIR": str(FOREIGN / "torchinductor"),
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # in the process itself; else it starts others that outlive it for a while
}
"""The Python of the processes in .venv-peers."""

TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
"""Precision -> largest error of an answer that passes, relative as `tfperf.measure.check_agreement` has it."""


class Peer(NamedTuple):
    """A framework and a way to use it. The module here has `load(given) -> loaded`."""

    name: str
    module: str
    way: str = ""
    precision: str = "float32"
    backend: str = ""
    """Keras's, for a module that runs here with TensorFlow and there with others; empty: here."""

    @property
    def python(self) -> str:
        """That runs it."""
        here = FOREIGN / "bin" / "python" if self.backend else sys.executable
        return str(PYTHON.get(self.module, here))

    @property
    def environment(self) -> dict[str, str]:
        """What its process is told beside everything that this one was."""
        if self.backend:
            return ENVIRONMENT | {"KERAS_BACKEND": self.backend}
        return ENVIRONMENT if self.module in PYTHON else {}


FLOAT32 = (
    Peer("PyTorch eager", "torch_peer", "eager"),
    Peer("TorchScript, frozen", "torch_peer", "freeze"),
    Peer("TorchScript, optimized", "torch_peer", "optimize_for_inference"),
    Peer("torch.compile", "torch_peer", "compile"),
    Peer("torch.compile, freezing", "torch_peer", "compile, freezing"),
    Peer("JAX jit", "jax_peer"),
    Peer("ONNX Runtime", "onnx_peer"),
    Peer("OpenVINO", "openvino_peer"),
    Peer("LiteRT", "litert_peer"),
)

REDUCED = (
    Peer("PyTorch eager, bfloat16", "torch_peer", "eager", "bfloat16"),
    Peer("TorchScript, optimized, bfloat16", "torch_peer", "optimize_for_inference", "bfloat16"),
    Peer("torch.compile, freezing, bfloat16", "torch_peer", "compile, freezing", "bfloat16"),
    Peer("OpenVINO, its own precision", "openvino_peer", "default", "bfloat16"),
)
"""Not among them: JAX in bfloat16, no faster than in float32 on any net here that JAX is fast on."""

PEERS = FLOAT32 + REDUCED


def why_not_set_up() -> str | None:
    """What to do before the peers can run, in one line; None: nothing."""
    if (FOREIGN / ".installed").exists():
        return None
    return f"expected PyTorch and JAX in {FOREIGN.name}; run: make {FOREIGN.name.removeprefix('.venv-')}"
