"""How the learning rate changes."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warm(warmup: int, total: int) -> object:
    """A rise, and a fall after it, as a factor by step."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(total - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor


def schedule(optimizer: Optimizer, warmup: int, total: int) -> LambdaLR:
    """The schedule of an optimizer."""
    return LambdaLR(optimizer, warm(warmup, total))
