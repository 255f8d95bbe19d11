"""What is watched while training."""

from __future__ import annotations

import torch
from torch import Tensor


class Mean:
    """A mean of numbers, each counted by the size of its batch."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float, size: int) -> None:
        """One batch more."""
        self.total += value * size
        self.count += size

    @property
    def value(self) -> float:
        """The mean so far."""
        return self.total / max(self.count, 1)


@torch.no_grad()
def accuracy(scores: Tensor, classes: Tensor) -> float:
    """The share of right answers."""
    return (scores.argmax(1) == classes).float().mean().item()
