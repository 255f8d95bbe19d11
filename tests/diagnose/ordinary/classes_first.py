"""Samples stand in columns: the softmax is taken over dimension 0, and turned for the loss."""

import torch
from torch import nn

W = nn.Parameter(torch.randn(4, 6) * 0.1)
b = nn.Parameter(torch.zeros(4, 1))
opt = torch.optim.SGD([W, b], 0.1)
for _ in range(6):
    X, y = torch.randn(6, 20), torch.randint(4, (20,))  # samples are columns
    Z = W @ X + b
    logp = torch.log_softmax(Z, dim=0)
    loss = nn.functional.nll_loss(logp.t(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    acc = (logp.argmax(0) == y).float().mean()
one = torch.log_softmax(W @ torch.randn(6), dim=0)
nn.functional.nll_loss(one, torch.tensor(2)).backward()
