"""A gradient that is handed through as it came, though the function is not the identity."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, diagonal, example, figure


@cause("gradient handed through", priority=68)
def identity(evidence: Evidence) -> Cause | None:
    """Reverse mode is the identity matrix and the derivative another diagonal one."""
    block = Block.of(evidence)
    slopes = block.numeric.diagonal()
    if slopes.numel() < 2 or not diagonal(block):
        return None
    if not bool(((block.ours.diagonal() - 1).abs() <= 1e-9).all()):
        return None
    low, high = (
        (slopes.abs().min(), slopes.abs().max()) if slopes.is_complex() else (torch.min(slopes), torch.max(slopes))
    )
    return Cause(
        "gradient handed through",
        f"the backward returns the gradient as it came, but the slopes are between {figure(low)} and {figure(high)}: "
        f"{example(evidence, block)}",
        "multiply the gradient by the derivative of the function",
    )
