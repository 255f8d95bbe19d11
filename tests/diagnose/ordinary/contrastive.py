"""Two views of each example are pulled together, others pushed away."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for _ in range(4):
    x = torch.randn(16, 10)
    a, b = (F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
    similarity = a @ b.T / 0.1
    labels = torch.arange(16)
    loss = (F.cross_entropy(similarity, labels) + F.cross_entropy(similarity.T, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (similarity.argmax(1) == labels).float().mean().item()
