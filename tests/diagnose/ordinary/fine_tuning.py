"""A frozen backbone in evaluation mode, a head that is trained, then all of it with a smaller rate."""

import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
head = nn.Linear(16, 3)
backbone.eval()
for p in backbone.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


def step(x, y):
    optimizer.zero_grad()
    loss = criterion(head(backbone(x)), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(3):
    step(torch.randn(10, 8), torch.randint(0, 3, (10,)))
for p in backbone.parameters():
    p.requires_grad_(True)
optimizer.add_param_group({"params": backbone.parameters(), "lr": 1e-4})
backbone.train()
for _ in range(3):
    step(torch.randn(10, 8), torch.randint(0, 3, (10,)))
