"""A normalising flow of affine couplings, fitted by maximum likelihood."""

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        shift, log_scale = self.net(a).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), log_scale.squeeze(1)


torch.manual_seed(0)
flow = nn.ModuleList(Coupling(bool(i % 2)) for i in range(4))
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
prior = torch.distributions.Normal(0.0, 1.0)
for _ in range(4):
    z, volume = torch.randn(64, 2) * torch.tensor([2.0, 0.5]), 0.0
    for layer in flow:
        z, change = layer(z)
        volume = volume + change
    loss = -(prior.log_prob(z).sum(1) + volume).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
