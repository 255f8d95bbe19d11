"""Graphs that were freed, and functions that cannot be differentiated (twice)."""
