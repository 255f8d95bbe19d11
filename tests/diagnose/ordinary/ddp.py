"""Data-parallel training with gloo, one process here."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    x = torch.randn(8, 3)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
