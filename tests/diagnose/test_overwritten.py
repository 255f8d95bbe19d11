"""Changes in place: what was changed, by what, and where; each with the line, and an edit that mends it."""

import textwrap

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

IN_A_MODULE = """
    import torch
    from torch import nn

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)

        def forward(self, x):
            gate = torch.sigmoid(self.a(x))
            gate += 0.1
            return self.b(x) * gate

    def main():
        net = Gate()
        net(torch.randn(3, 4)).pow(2).mean().backward()

    main()
"""
ACTIVATION = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 2, 3, padding=1)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(torch.tanh(self.conv(x))) + x

    net = nn.Sequential(Block(), Block())
    net(torch.randn(1, 2, 8)).sum().backward()
"""
ACTOR_AND_CRITIC = """
    import torch
    from torch import nn

    class Agent:
        def __init__(self):
            self.actor = nn.Linear(3, 2)
            self.critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
            self.by_critic = torch.optim.Adam(self.critic.parameters())

        def update(self, s):
            a = self.actor(s)
            first = -self.critic(torch.cat([s, a], 1)).mean()
            second = self.critic(torch.cat([s, a.detach()], 1)).pow(2).mean()
            second.backward()
            self.by_critic.step()
            first.backward()

    Agent().update(torch.randn(4, 3))
"""
BY_HAND = """
    import torch
    first, last = torch.nn.Linear(4, 1), torch.nn.Linear(1, 1)

    def train():
        for _ in range(3):
            loss = last(first(torch.randn(8, 4)).tanh()).pow(2).mean()
            with torch.no_grad():
                for weight in [*first.parameters(), *last.parameters()]:
                    if weight.grad is not None:
                        weight.sub_(0.1 * weight.grad)
            loss.backward()

    train()
"""
BUFFER = """
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 3)
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x):
            y = self.line(x) * self.mean
            self.mean.mul_(0.9)
            return y

    net = Scaled()
    net(torch.randn(2, 3)).sum().backward()
"""
INDEX = """
    import torch
    kept = torch.zeros(5, 4)
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(5, 4)
    h = x[0] @ w
    for t in range(1, 5):
        kept[t] = torch.tanh(h)
        h = kept[t] @ w
    h.sum().backward()
"""
BY_HAND_UNDER_GRAD = """
    import torch
    w, b = torch.randn(3, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(3):
        loss = ((torch.randn(5, 3) @ w + b) ** 2).mean()
        loss.backward()
        for p in (w, b):
            p -= 0.1 * p.grad
            p.grad.zero_()
"""
PROGRAMS = {
    "in a module": (IN_A_MODULE, "PB401", "gate += 0.1"),
    "index": (INDEX, "PB402", "kept[t] ="),
    "activation": (ACTIVATION, "PB405", "inplace=True"),
    "actor and critic": (ACTOR_AND_CRITIC, "PB406", "self.by_critic.step()"),
    "by hand": (BY_HAND, "PB408", "weight.sub_("),
    "buffer": (BUFFER, "PB410", "self.mean.mul_("),
    "under grad": (BY_HAND_UNDER_GRAD, "PB421", "p -= "),
}


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize(("program", "code", "line"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_change_is_found(program, code, line, level):
    report = told(program, level)
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert any(line in each["text"] for each in found["lines"])
    assert level == "default" or found["confidence"] == "high"


@pytest.mark.parametrize("name", ["in a module", "index", "activation", "by hand", "buffer", "under grad"])
def test_the_edits_mend_it(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAMS[name][0]))
    (found,) = told(file, "trace")["diagnoses"]
    assert found["fix"]["confidence"] == "high"
    edits = [Edit(**each) for each in found["fix"]["edits"]]
    assert told(applied(edits, str(file)))["error"] is None
