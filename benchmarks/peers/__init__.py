"""The peers of tfperf, each in a process of its own; what `benchmarks/peers.py` is made of."""
