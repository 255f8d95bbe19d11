"""Roots without a graph: where the path from the parameters to the root was cut."""
