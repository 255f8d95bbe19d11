"""The recorded autograd graph as plain values: its nodes, what they keep in memory, and where they were written."""
