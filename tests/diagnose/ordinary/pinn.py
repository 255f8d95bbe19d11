"""A differential equation solved by a network: u'' = -u, with second derivatives."""

import torch
from torch import nn

torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(u.parameters(), lr=1e-3)
for _ in range(4):
    t = torch.rand(32, 1, requires_grad=True)
    value = u(t)
    (first,) = torch.autograd.grad(value.sum(), t, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), t, create_graph=True)
    inside = (second + value).pow(2).mean()
    start = torch.zeros(1, 1, requires_grad=True)
    at_start = u(start)
    (speed,) = torch.autograd.grad(at_start.sum(), start, create_graph=True)
    loss = inside + at_start.pow(2).mean() + (speed - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
