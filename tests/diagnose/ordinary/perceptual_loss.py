"""A loss through another network, and a group of the optimizer that is empty because no bias is there."""

import torch
from torch import nn

vgg = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)).eval()
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1, bias=False))
decay = [p for p in net.parameters() if p.ndim > 1]
rest = [p for p in net.parameters() if p.ndim <= 1]
opt = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], 1e-3)
for _ in range(5):
    x = torch.rand(2, 1, 8, 8)
    out = net(x + 0.1 * torch.randn_like(x))
    loss = (out - x).pow(2).mean() + (vgg(out) - vgg(x).detach()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
