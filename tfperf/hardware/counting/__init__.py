"""What a net asks for, by two ways that are independent: its graph, and the shapes of its compiled HLO."""

from tfperf.hardware.counting.graph_work import graph_work
from tfperf.hardware.counting.hlo_work import hlo_work
from tfperf.hardware.counting.tracing import forward_pass, program_of, training_pass
from tfperf.hardware.counting.work import Work, by_layer

__all__ = ["Work", "by_layer", "forward_pass", "graph_work", "hlo_work", "program_of", "training_pass"]
