"""A GAN: the discriminator sees detached fakes, the generator does not."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
real_label, fake_label = torch.ones(8, 1), torch.zeros(8, 1)
for _ in range(4):
    real, fake = torch.randn(8, 2) + 2, G(torch.randn(8, 4))
    opt_d.zero_grad()
    loss_d = bce(D(real), real_label) + bce(D(fake.detach()), fake_label)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(D(fake), real_label)
    loss_g.backward()
    opt_g.step()
