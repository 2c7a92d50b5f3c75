"""`python -m tfperf` is `tfperf`."""

from tfperf.cli import main

main()
