"""A mask of ones is there only to read the importance of heads from its gradient."""

import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mask = torch.ones(2, 1, 1, requires_grad=True)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return self.o((a * self.mask).transpose(1, 2).flatten(2))


net = nn.Sequential(nn.Linear(5, 8), Attn(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters())
score = torch.zeros(2)
for _ in range(5):
    x = torch.randn(6, 4, 5)
    loss = (net(x) - x.mean(-1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for m in net.modules():
        mask = getattr(m, "mask", None)
        if mask is not None:
            score += mask.grad.abs().flatten()
            mask.grad = None
    opt.step()
print(score)
