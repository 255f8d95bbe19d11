"""Self-attention with several heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .weights import scores_of, weights_of


class Head(nn.Module):
    """One head."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The values, weighed."""
        scores = scores_of(self.query(x), self.key(x))
        return weights_of(scores, mask) @ self.value(x)


class Attention(nn.Module):
    """Several heads, side by side."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError("width must be a multiple of heads")
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """What the heads say, mixed."""
        return self.out(torch.cat([head(x, mask) for head in self.heads], dim=-1))
