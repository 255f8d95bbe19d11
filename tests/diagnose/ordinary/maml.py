"""Meta-learning: an inner step that the outer gradient goes through."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
meta = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(3):
    meta.zero_grad()
    outer = 0
    for _ in range(2):
        slope = torch.randn(1)
        x, x_test = torch.randn(8, 1), torch.randn(8, 1)
        parameters = dict(net.named_parameters())
        inner = (functional_call(net, parameters, (x,)) - slope * x).pow(2).mean()
        grads = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
        adapted = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), grads)}
        outer = outer + (functional_call(net, adapted, (x_test,)) - slope * x_test).pow(2).mean()
    (outer / 2).backward()
    meta.step()
