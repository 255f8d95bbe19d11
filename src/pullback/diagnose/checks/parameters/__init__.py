"""Silent faults of parameters: which tensors get gradients, and which the optimizer moves."""
