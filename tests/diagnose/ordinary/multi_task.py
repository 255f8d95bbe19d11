"""Two heads on a trunk, their losses weighted by learned uncertainties."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"depth": nn.Linear(16, 1), "label": nn.Linear(16, 4)})
        self.log_sigma = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(4):
    x = torch.randn(12, 6)
    out = net(x)
    losses = torch.stack(
        [
            nn.functional.mse_loss(out["depth"], x[:, :1]),
            nn.functional.cross_entropy(out["label"], torch.randint(0, 4, (12,))),
        ]
    )
    loss = (losses * torch.exp(-net.log_sigma) + net.log_sigma).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
