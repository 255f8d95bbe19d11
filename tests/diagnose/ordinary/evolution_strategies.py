"""Gradients that are estimated from rewards and written into .grad."""

import torch
from torch import nn

net = nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), 1e-2)
params = list(net.parameters())
for p in params:
    p.grad = torch.zeros_like(p)


def reward():
    with torch.no_grad():
        return -net(torch.ones(1, 4)).pow(2).sum().item()


for _ in range(6):
    base = [p.detach().clone() for p in params]
    grads = [torch.zeros_like(p) for p in params]
    for _ in range(4):
        noise = [torch.randn_like(p) for p in params]
        for p, b, n in zip(params, base, noise):
            p.data.copy_(b + 0.1 * n)
        r = reward()
        for g, n in zip(grads, noise):
            g -= r * n / 0.4
    for p, b, g in zip(params, base, grads):
        p.data.copy_(b)
        p.grad.data.copy_(g)
    opt.step()
