"""Q-learning with a target network that is copied now and then."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
target = copy.deepcopy(q)
target.requires_grad_(False)
optimizer = torch.optim.RMSprop(q.parameters(), lr=1e-3)
for step in range(6):
    state, following, reward = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
    action = torch.randint(0, 3, (16, 1))
    with torch.no_grad():
        goal = reward + 0.9 * target(following).max(dim=1).values
    chosen = q(state).gather(1, action).squeeze(1)
    loss = nn.functional.smooth_l1_loss(chosen, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        target.load_state_dict(q.state_dict())
