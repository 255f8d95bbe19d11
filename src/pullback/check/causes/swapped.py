"""The gradients of two inputs of the same shape, handed to one another."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example


@cause("swapped inputs", priority=48)
def swapped(evidence: Evidence) -> Cause | None:
    """Reverse mode is the derivative by another input."""
    block = Block.of(evidence)
    for other in evidence.others:
        if other.input == evidence.input or other.numeric.shape != evidence.numeric.shape:
            continue
        numeric = torch.where(block.known, other.numeric.detach().to(block.numeric), 0)
        if bool(torch.isfinite(numeric).all()) and bool(block.wrong.any()) and block.says(numeric):
            return Cause(
                "swapped inputs",
                f"the gradient by {evidence.input} is the derivative by {other.input}: {example(evidence, block)}",
                f"backward returns one gradient per argument of forward, in its order: swap those of {evidence.input}"
                f" and {other.input}",
            )
    return None
