"""Inputs that the output does not depend on, and gradients that are None."""
