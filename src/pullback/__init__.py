"""Pullback: the Jacobian of any PyTorch computation as one object, and backward passes with checked seeds."""

from pullback.api.jacobian import jacobian as jacobian
from pullback.api.jacobian import jacobian_of as jacobian_of

__version__ = "0.1.0"
