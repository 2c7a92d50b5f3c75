"""Showing what was measured: tables for terminals, plots for files."""
