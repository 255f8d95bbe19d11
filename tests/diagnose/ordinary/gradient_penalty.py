"""A critic with a gradient penalty."""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
for _ in range(3):
    real, fake = torch.randn(12, 2) + 1, torch.randn(12, 2)
    mix = torch.rand(12, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    score = critic(between)
    (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
