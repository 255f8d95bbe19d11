"""Activations and their gradients are watched by hooks, as for class activation maps."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
).eval()
kept = {}
forward = net[0].register_forward_hook(lambda module, inputs, output: kept.update(activation=output.detach()))
backward = net[0].register_full_backward_hook(
    lambda module, given, received: kept.update(gradient=received[0].detach())
)
image = torch.rand(1, 1, 6, 6, requires_grad=True)
score = net(image)[0].max()
score.backward()
weights = kept["gradient"].mean((2, 3), keepdim=True)
heat = torch.relu((weights * kept["activation"]).sum(1))
forward.remove()
backward.remove()
print(tuple(heat.shape), tuple(image.grad.shape))
