"""The tests of tfperf: each room of the package has a folder here."""
