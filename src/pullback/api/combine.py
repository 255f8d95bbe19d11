"""``pb.combine``: ways to weigh several losses, for ``pb.backward(losses, combine=...)``."""

from __future__ import annotations

from pullback.losses.average import DynamicWeightAverage
from pullback.losses.gradnorm import GradNorm
from pullback.losses.uncertainty import Uncertainty

__all__ = ["DynamicWeightAverage", "GradNorm", "Uncertainty"]
