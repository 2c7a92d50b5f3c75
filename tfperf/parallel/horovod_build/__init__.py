"""Horovod for this TensorFlow: built from its source distribution, kept, installed, and proved by two ranks.

Imports neither TensorFlow nor Horovod: what has to load them runs in a process of its own.
"""

from tfperf.parallel.horovod_build.installed import (
    Allreduce,
    InstalledHorovod,
    allreduce_on_two_ranks,
    find_horovod,
)
from tfperf.parallel.horovod_build.installing import Source, Wanted, install

__all__ = ["Allreduce", "InstalledHorovod", "Source", "Wanted", "allreduce_on_two_ranks", "find_horovod", "install"]
