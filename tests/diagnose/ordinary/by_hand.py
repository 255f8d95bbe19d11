"""Plain gradient descent, written by hand."""

import torch

torch.manual_seed(0)
x = torch.randn(50, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
w, b = torch.zeros(3, requires_grad=True), torch.zeros(1, requires_grad=True)
losses = []
for _ in range(10):
    loss = (x @ w + b - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        b -= 0.1 * b.grad
        w.grad.zero_()
        b.grad.zero_()
    losses.append(loss.detach())
print(torch.stack(losses).mean().item())
