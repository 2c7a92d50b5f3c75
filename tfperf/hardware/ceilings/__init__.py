"""What this machine can give, measured through TensorFlow; importing the figures does not load it."""

from tfperf.hardware.ceilings.figures import Bandwidth, CallCost, Ceilings, ProductRate, Refusal

__all__ = ["Bandwidth", "CallCost", "Ceilings", "ProductRate", "Refusal"]
