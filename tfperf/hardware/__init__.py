"""What a machine can give and a net asks for: ceilings, arithmetic and traffic, and what time is spent on."""

from tfperf.hardware.graph_work import graph_work
from tfperf.hardware.hlo_work import hlo_work
from tfperf.hardware.layers import by_layer
from tfperf.hardware.tracing import forward_pass, program_of, training_pass
from tfperf.hardware.work import Work

__all__ = ["Work", "by_layer", "forward_pass", "graph_work", "hlo_work", "program_of", "training_pass"]
