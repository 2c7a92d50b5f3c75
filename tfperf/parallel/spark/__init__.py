"""A Spark cluster on this machine, reachable from nowhere else: for recipes that train on Spark."""

from tfperf.parallel.spark.cluster import SparkCluster
from tfperf.parallel.spark.notes import Notes, Training, set_weights
from tfperf.parallel.spark.private_network import enter_private_network, is_private
from tfperf.parallel.spark.requirements import check_requirements

__all__ = [
    "Notes",
    "SparkCluster",
    "Training",
    "check_requirements",
    "enter_private_network",
    "is_private",
    "set_weights",
]
