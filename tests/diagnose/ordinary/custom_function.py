"""A custom autograd.Function that is right, inside a model."""

import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Act(nn.Module):
    def forward(self, x):
        return Swish.apply(x)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 12), Act(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    x = torch.randn(9, 4)
    loss = (net(x).squeeze(1) - x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert torch.autograd.gradcheck(Swish.apply, torch.randn(3, dtype=torch.double, requires_grad=True))
