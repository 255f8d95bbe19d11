"""A vector-quantised autoencoder with a straight-through estimator."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder, decoder, codes = nn.Linear(6, 4), nn.Linear(4, 6), nn.Embedding(8, 4)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *codes.parameters()], lr=1e-2)
for _ in range(4):
    x = torch.randn(20, 6)
    z = encoder(x)
    nearest = torch.cdist(z.detach(), codes.weight.detach()).argmin(1)
    code = codes(nearest)
    through = z + (code - z).detach()
    loss = F.mse_loss(decoder(through), x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
