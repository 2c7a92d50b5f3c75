"""Honest measurement: sampling, statistics, comparison, environment, result files. Imports no TensorFlow."""

from tfperf.measure.agreement import Agreement, check_agreement
from tfperf.measure.benchmark import Benchmark
from tfperf.measure.comparing import compare
from tfperf.measure.comparison import Comparison, Ratio, Verdict
from tfperf.measure.environment import Conditions, Environment
from tfperf.measure.measurement import Doubt, Measurement, Stop
from tfperf.measure.memory import PeakMemory
from tfperf.measure.results import Result, read_result, write_result
from tfperf.measure.sampling import Progress, measure
from tfperf.measure.statistics import Interval
from tfperf.measure.words import format_bytes, format_seconds

__all__ = [
    "Agreement",
    "Benchmark",
    "Comparison",
    "Conditions",
    "Doubt",
    "Environment",
    "Interval",
    "Measurement",
    "PeakMemory",
    "Progress",
    "Ratio",
    "Result",
    "Stop",
    "Verdict",
    "check_agreement",
    "compare",
    "format_bytes",
    "format_seconds",
    "measure",
    "read_result",
    "write_result",
]
