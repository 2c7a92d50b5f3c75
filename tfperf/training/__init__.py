"""Training on the machine you have: layers and optimizers that compute faster and are saved as Keras's."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfperf.training.activation import CompiledActivation, CompiledReLU
    from tfperf.training.attention import MergedAttention
    from tfperf.training.batch_norm import FusedBatchNormalization
    from tfperf.training.convolution import SwappedConv1D, SwappedConv2D, convolve
    from tfperf.training.dense import FlattenedDense
    from tfperf.training.depthwise import CompiledDepthwiseConv1D, CompiledDepthwiseConv2D
    from tfperf.training.dropout import CompiledDropout
    from tfperf.training.fusing import Fusion, Swap, fuse, unfuse
    from tfperf.training.layer_norm import CompiledLayerNormalization
    from tfperf.training.looping import fit
    from tfperf.training.optimizers import fast_optimizer
    from tfperf.training.plan import TrainingPlan
    from tfperf.training.precision import use_mixed_precision
    from tfperf.training.recurrent import CompiledGRU, CompiledLSTM
    from tfperf.training.separable import CompiledSeparableConv1D, CompiledSeparableConv2D
    from tfperf.training.throughput import EpochThroughput, Throughput

__all__ = [
    "CompiledActivation",
    "CompiledDepthwiseConv1D",
    "CompiledDepthwiseConv2D",
    "CompiledDropout",
    "CompiledGRU",
    "CompiledLSTM",
    "CompiledLayerNormalization",
    "CompiledReLU",
    "CompiledSeparableConv1D",
    "CompiledSeparableConv2D",
    "EpochThroughput",
    "FlattenedDense",
    "FusedBatchNormalization",
    "Fusion",
    "MergedAttention",
    "Swap",
    "SwappedConv1D",
    "SwappedConv2D",
    "Throughput",
    "TrainingPlan",
    "convolve",
    "fast_optimizer",
    "fit",
    "fuse",
    "unfuse",
    "use_mixed_precision",
]

_HOMES = {
    "CompiledActivation": "activation",
    "CompiledDepthwiseConv1D": "depthwise",
    "CompiledDepthwiseConv2D": "depthwise",
    "CompiledDropout": "dropout",
    "CompiledGRU": "recurrent",
    "CompiledLSTM": "recurrent",
    "CompiledLayerNormalization": "layer_norm",
    "CompiledReLU": "activation",
    "CompiledSeparableConv1D": "separable",
    "CompiledSeparableConv2D": "separable",
    "EpochThroughput": "throughput",
    "FlattenedDense": "dense",
    "FusedBatchNormalization": "batch_norm",
    "Fusion": "fusing",
    "MergedAttention": "attention",
    "Swap": "fusing",
    "SwappedConv1D": "convolution",
    "SwappedConv2D": "convolution",
    "Throughput": "throughput",
    "TrainingPlan": "plan",
    "convolve": "convolution",
    "fast_optimizer": "optimizers",
    "fit": "looping",
    "fuse": "fusing",
    "unfuse": "fusing",
    "use_mixed_precision": "precision",
}
"""Public name -> its module, which is loaded when the name is first used: all of them load TensorFlow."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfperf.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfperf.training.{_HOMES[name]}"), name)
