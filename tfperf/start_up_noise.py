"""What TensorFlow writes on each healthy start, and nobody needs to read."""

import re

__all__ = ["START_UP_NOISE"]

START_UP_NOISE = re.compile(
    r"All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|\] oneDNN custom operations are on\."
    r"|\] Could not find cuda drivers on your machine, GPU will not be used"
    r"|\] failed call to cuInit: .*\(303\)"  # 303: there is no driver's library to load
)
"""Lines that TensorFlow 2.21 writes on a machine without a GPU; no variable silences them."""
