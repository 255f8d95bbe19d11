"""An input is optimised while the network stays as it is."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
net.requires_grad_(False)
image = torch.rand(1, 1, 10, 10, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    loss = -net(image)[0, 1] + 1e-2 * (image[..., 1:] - image[..., :-1]).abs().sum()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
