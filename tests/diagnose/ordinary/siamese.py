"""A triplet loss with masks and the hardest negative of a batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(4):
    x, label = torch.randn(18, 5), torch.arange(18) % 3
    z = F.normalize(net(x), dim=1)
    distance = (2 - 2 * z @ z.T).clamp(min=1e-8).sqrt()
    same = label[:, None] == label[None]
    positive = distance.masked_fill(~same, 0).max(1).values
    negative = distance.masked_fill(same, float("inf")).min(1).values
    loss = F.relu(positive - negative + 0.3).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
