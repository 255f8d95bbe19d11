"""The norm of the gradients is logged after the step, by a clipping that clips nothing."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(6):
    opt.zero_grad()
    nn.functional.cross_entropy(net(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
    opt.step()
    norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    per = [p.grad.norm().item() for p in net.parameters()]
    total = torch.norm(torch.stack([p.grad.norm(2) for p in net.parameters()]), 2)
    print(step, norm.item(), total.item(), max(per))
