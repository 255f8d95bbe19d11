"""Pullback: the Jacobian of any PyTorch computation as one object, and backward passes with checked seeds."""

from pullback import errors as errors
from pullback.api import seed as seed
from pullback.api.backward import backward as backward
from pullback.api.backward import grad as grad
from pullback.api.jacobian import jacobian as jacobian
from pullback.api.jacobian import jacobian_of as jacobian_of
from pullback.jacobian.jacobian import Jacobian as Jacobian

__all__ = ["Jacobian", "backward", "errors", "grad", "jacobian", "jacobian_of", "seed"]
__version__ = "0.1.0"
