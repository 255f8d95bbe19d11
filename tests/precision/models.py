"""Models and losses whose precision is watched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(self.drop(h.flatten(1)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))


def sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 5, 16), torch.randint(0, 3, (6,))


def loss_of(model: nn.Module, dtype: torch.dtype | None = None, factor: float = 1.0) -> Callable[..., Tensor]:
    """Cross entropy, under CPU autocast if a dtype is given."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if dtype is None:
            out = model(x)
        else:
            with torch.autocast("cpu", dtype):
                out = model(x).float() if x.dtype is not torch.float64 else model(x)
        return nn.functional.cross_entropy(out, y) * factor

    return loss


def error_by_hand(
    f: Callable[..., Tensor], x: Tensor, params: list[Tensor], exact: list[Tensor], seed: Tensor | float, scale: float
) -> float:
    """The relative error of all gradients as one vector, by plain torch, for a seed that is scaled and divided out."""
    out = f(x)
    grad = torch.as_tensor(seed).expand_as(out).to(torch.float64) * scale
    found = torch.autograd.grad(out, params, grad.to(out.dtype))
    flat = torch.cat([each.float().flatten() / scale for each in found]).double()
    return float(
        (flat - torch.cat([each.flatten() for each in exact])).norm() / torch.cat([e.flatten() for e in exact]).norm()
    )
