"""Graphs that are kept alive, or recorded for nothing."""
