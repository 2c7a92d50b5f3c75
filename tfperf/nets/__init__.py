"""Nets to measure: ``get_net(name)`` returns a built ``keras.Model``. One file per architecture.

Importing this package imports neither TensorFlow nor Keras; they are imported when a net is first built.
"""

from tfperf.nets.catalog import NAMES, get_net

__all__ = ["NAMES", "get_net"]
