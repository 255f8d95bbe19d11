"""Graphs that an earlier backward pass has freed: what holds them, and which pass it was."""
