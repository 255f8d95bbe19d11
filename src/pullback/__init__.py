"""Pullback: the Jacobian of any PyTorch computation as one object."""
