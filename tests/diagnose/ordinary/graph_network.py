"""Message passing on a graph with index_add."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x, edges):
        source, sink = edges
        messages = torch.relu(self.message(torch.cat([x[source], x[sink]], 1)))
        gathered = torch.zeros_like(x).index_add(0, sink, messages)
        return x + self.update(torch.cat([x, gathered], 1))


torch.manual_seed(0)
first, layers, head = nn.Linear(3, 8), nn.ModuleList([Layer(8), Layer(8)]), nn.Linear(8, 2)
optimizer = torch.optim.Adam([*first.parameters(), *layers.parameters(), *head.parameters()], lr=1e-2)
edges = torch.randint(0, 30, (2, 90))
x, labels, known = torch.randn(30, 3), torch.randint(0, 2, (30,)), torch.rand(30) < 0.5
for _ in range(4):
    h = first(x)
    for layer in layers:
        h = layer(h, edges)
    loss = nn.functional.cross_entropy(head(h)[known], labels[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
