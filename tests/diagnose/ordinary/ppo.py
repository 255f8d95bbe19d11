"""Proximal policy optimisation: several epochs over the same roll-out."""

import torch
from torch import nn
from torch.distributions import Normal


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, state):
        return Normal(self.actor(state), self.log_std.exp()), self.critic(state).squeeze(-1)


torch.manual_seed(0)
net = ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(2):
    with torch.no_grad():
        state = torch.randn(32, 3)
        policy, value = net(state)
        action = policy.sample()
        old = policy.log_prob(action).sum(-1)
        reward = -(action - state[:, :1]).pow(2).squeeze(-1)
        advantage = reward - value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(3):
        policy, value = net(state)
        ratio = (policy.log_prob(action).sum(-1) - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean() + 0.5 * (value - reward).pow(2).mean()
        loss = loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
