"""C and C++ that tfperf comes with, compiled on the machine that runs it: by which compiler, for which processor."""
