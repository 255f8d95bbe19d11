"""Graphs that stay alive from step to step: found while a loop runs, with the variable and the line that keep them."""
