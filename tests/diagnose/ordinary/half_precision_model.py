"""A model in bfloat16 whose optimizer has single-precision masters."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).to(torch.bfloat16)
masters = [p.detach().float().requires_grad_() for p in net.parameters()]
optimizer = torch.optim.Adam(masters, lr=1e-2)
for _ in range(3):
    x, y = torch.randn(10, 6, dtype=torch.bfloat16), torch.randint(0, 2, (10,))
    loss = nn.functional.cross_entropy(net(x).float(), y)
    net.zero_grad()
    loss.backward()
    for master, p in zip(masters, net.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, net.parameters()):
            p.copy_(master)
