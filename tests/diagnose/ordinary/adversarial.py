"""Adversarial examples by the sign of the gradient, and training on them."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    shifted = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(F.cross_entropy(net(shifted), y), shifted)
    attacked = (x + 0.1 * slope.sign()).detach()
    optimizer.zero_grad()
    loss = F.cross_entropy(net(attacked), y)
    loss.backward()
    optimizer.step()
