"""Low-rank adapters on a frozen model."""

import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
net.requires_grad_(False)
for index in (0, 2):
    net[index] = LoRA(net[index])
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
for _ in range(4):
    x, y = torch.randn(10, 6), torch.randint(0, 2, (10,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
