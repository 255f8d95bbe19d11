"""Gradients of each example by vmap, clipped one by one, with noise."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of_one(parameters, x, y):
    return (functional_call(net, parameters, (x[None],)) - y).pow(2).sum()


for _ in range(3):
    x, y = torch.randn(10, 4), torch.randn(10, 1)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    grads = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(parameters, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = 1.0 / norms.clamp(min=1.0)
    for name, p in net.named_parameters():
        g = grads[name]
        p.grad = (g * scale.view(-1, *[1] * (g.dim() - 1))).mean(0) + 1e-3 * torch.randn_like(p)
    optimizer.step()
    optimizer.zero_grad()
