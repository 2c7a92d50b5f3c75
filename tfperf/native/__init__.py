"""This machine's processor, and the C and C++ that tfperf comes with: by which compiler, for which processor."""
