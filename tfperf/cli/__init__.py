"""The command line: `tfperf --help`."""

from tfperf.cli.app import main

__all__ = ["main"]
