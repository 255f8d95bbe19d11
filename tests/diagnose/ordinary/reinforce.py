"""Policy gradient with a baseline: samples carry no gradient, their log-probabilities do."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy, value = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
for _ in range(4):
    state = torch.randn(20, 4)
    distribution = Categorical(logits=policy(state))
    action = distribution.sample()
    reward = (action == (state[:, 0] > 0)).float()
    baseline = value(state).squeeze(-1)
    advantage = reward - baseline.detach()
    loss = -(distribution.log_prob(action) * advantage).mean() - 0.01 * distribution.entropy().mean()
    loss = loss + (baseline - reward).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
