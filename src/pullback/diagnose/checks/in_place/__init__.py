"""Changes in place that autograd cannot follow or forbids."""
