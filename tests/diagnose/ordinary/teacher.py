"""Self-distillation: the teacher is an average of the student and gets no gradient."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, weight_decay=1e-4)
for _ in range(4):
    x = torch.randn(20, 6)
    with torch.no_grad():
        goal = F.softmax(teacher(x) / 0.5, dim=1)
    loss = -(goal * F.log_softmax(student(x + 0.1 * torch.randn_like(x)), dim=1)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, new in zip(teacher.parameters(), student.parameters()):
            mean.mul_(0.9).add_(new, alpha=0.1)
