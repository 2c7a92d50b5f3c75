"""`tfperf launch`: several ranks of a command, on this machine or several, ended together.

Importing this imports neither TensorFlow nor Horovod.
"""

from tfperf.parallel.launch.access import listen_on_loopback_only
from tfperf.parallel.launch.ending import Ending
from tfperf.parallel.launch.hosts import RankHost, parse_hosts, read_hostfile
from tfperf.parallel.launch.job import Job, launch
from tfperf.parallel.launch.ranks import Failure

__all__ = ["Ending", "Failure", "Job", "RankHost", "launch", "listen_on_loopback_only", "parse_hosts", "read_hostfile"]
