"""Truncated backpropagation through time with a hidden state that is carried over."""

import torch
from torch import nn

torch.manual_seed(0)
rnn, head = nn.LSTM(3, 8, num_layers=2, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
state = None
for step in range(4):
    x = torch.randn(4, 5, 3)
    if state is not None:
        state = tuple(each.detach() for each in state)
    out, state = rnn(x, state)
    loss = (head(out) - x.sum(-1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
