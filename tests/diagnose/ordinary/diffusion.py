"""A denoising diffusion model: noise is predicted, an average of the weights samples."""

import copy

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 8)
        self.net = nn.Sequential(nn.Linear(2 + 8, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=-1))


torch.manual_seed(0)
model = Denoiser()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 10), 0)
for _ in range(4):
    x = torch.randn(32, 2)
    t = torch.randint(0, 10, (32,))
    noise = torch.randn_like(x)
    scale = kept[t][:, None]
    loss = nn.functional.mse_loss(model(scale.sqrt() * x + (1 - scale).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, new in zip(average.parameters(), model.parameters()):
            mean.lerp_(new, 0.1)


@torch.no_grad()
def sample():
    x = torch.randn(5, 2)
    for t in reversed(range(10)):
        x = x - 0.1 * average(x, torch.full((5,), t))
    return x


sample()
