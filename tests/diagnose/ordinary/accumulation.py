"""Gradients accumulated over micro-batches, each loss divided by their number."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
accumulate = 4
optimizer.zero_grad()
for step in range(12):
    x = torch.randn(6, 5)
    loss = (net(x) - x.norm(dim=1, keepdim=True)).pow(2).mean()
    (loss / accumulate).backward()
    if (step + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
