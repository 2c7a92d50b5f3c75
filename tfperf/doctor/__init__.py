"""`tfperf doctor`: looks at the whole machine, and says how to mend what is missing.

Importing this room loads the standard library alone: a doctor must work where NumPy or TensorFlow do not.
"""

from tfperf.doctor.examination import examine
from tfperf.doctor.findings import Finding, State, is_fit

__all__ = ["Finding", "State", "examine", "is_fit"]
