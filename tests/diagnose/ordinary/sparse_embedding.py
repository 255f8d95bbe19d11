"""Word vectors by negative sampling, with sparse gradients."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
center, context = nn.Embedding(50, 8, sparse=True), nn.Embedding(50, 8, sparse=True)
optimizer = torch.optim.SparseAdam([center.weight, context.weight], lr=1e-2)
for _ in range(4):
    word, near, far = torch.randint(0, 50, (16,)), torch.randint(0, 50, (16,)), torch.randint(0, 50, (16, 5))
    v = center(word)
    good = F.logsigmoid((v * context(near)).sum(1))
    bad = F.logsigmoid(-(context(far) @ v[..., None]).squeeze(-1)).sum(1)
    loss = -(good + bad).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
