"""A variational autoencoder with the reparameterisation trick."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.mean, self.log_var = nn.Linear(10, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        h = F.relu(self.encoder(x))
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return torch.sigmoid(self.decoder(z)), mean, log_var


torch.manual_seed(0)
model = VAE()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    x = torch.rand(16, 10)
    out, mean, log_var = model(x)
    reconstruction = F.binary_cross_entropy(out, x, reduction="sum")
    divergence = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum()
    optimizer.zero_grad()
    (reconstruction + divergence).backward()
    optimizer.step()
