"""Optimizers, their parameters, and the parameters of modules."""
