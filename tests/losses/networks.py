"""Networks with several losses, small and random."""

import torch
from torch import nn


class Tasks(nn.Module):
    """A trunk that all tasks share, and a head for each."""

    def __init__(self, tasks=3, width=12, dtype=torch.float32, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks))
        self.to(dtype)
        self.x, self.y = torch.randn(9, 6, dtype=dtype), torch.randn(tasks, 9, 2, dtype=dtype)

    def features(self):
        return self.trunk(self.x)

    def losses(self, features=None):
        features = self.features() if features is None else features
        pairs = enumerate(zip(self.heads, self.y, strict=True))
        return [(head(features) - y).square().mean() * 3**k for k, (head, y) in pairs]

    def named(self):
        return {f"task{k}": loss for k, loss in enumerate(self.losses())}

    def take(self):
        """The gradients by name, which are then gone."""
        found = {name: each.grad for name, each in self.named_parameters()}
        self.zero_grad()
        return found


def plain_rows(losses, parameters):
    """The matrix of the losses' gradients, by torch, one after the other."""
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten()
                               for p, g in zip(parameters, found, strict=True)]))  # fmt: skip
    return torch.stack(rows)
