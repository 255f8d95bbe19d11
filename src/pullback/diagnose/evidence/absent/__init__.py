"""Gradients that are None, and tensors that are not what they were taken for."""
