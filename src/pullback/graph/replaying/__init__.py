"""A seed sent back through a graph, and what every node received and passed on."""
