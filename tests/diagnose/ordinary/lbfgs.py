"""A least-squares fit by L-BFGS with a closure."""

import torch

torch.manual_seed(0)
x = torch.linspace(-1, 1, 40)
y = 2 * torch.exp(-3 * x**2) + 0.01 * torch.randn(40)
height, width = torch.tensor(1.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
optimizer = torch.optim.LBFGS([height, width], line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (height * torch.exp(-width * x**2) - y).pow(2).sum()
    loss.backward()
    return loss


for _ in range(3):
    optimizer.step(closure)
print(height.item(), width.item())
