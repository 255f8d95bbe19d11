"""An adversarial attack runs its own backward pass, in training and, at the end, in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import nn

net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), 0.05)


def fgsm(model, x, y, eps):
    x = x.clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    return (x + eps * x.grad.sign()).detach()


net.train()
for _ in range(6):
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    adv = fgsm(net, x, y, 0.1)
    opt.zero_grad()
    F.cross_entropy(net(adv), y).backward()
    opt.step()
net.eval()
for eps in (0.05, 0.1):
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    adv = fgsm(net, x, y, eps)
    with torch.no_grad():
        print(eps, (net(adv).argmax(1) == y).float().mean().item())
