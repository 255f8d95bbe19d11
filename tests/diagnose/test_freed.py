"""Graphs that were freed: each way to meet one is told apart, with its lines and an edit that mends it."""

import textwrap

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

STATE_IN_A_HELPER = """
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            self.out = nn.Linear(4, 1)

        def forward(self, x, state=None):
            y, state = self.rnn(x, state)
            return self.out(y), state

    def learn(net, optimizer, x, state):
        value, state = net(x, state)
        loss = value.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return state

    def main():
        net = Reader()
        optimizer = torch.optim.Adam(net.parameters())
        state = None
        for _ in range(3):
            state = learn(net, optimizer, torch.randn(2, 5, 3), state)

    main()
"""
EVERY_THIRD_TURN = """
    import torch
    cell = torch.nn.GRUCell(3, 4)
    memory = torch.zeros(1, 4)
    loss = 0
    for turn in range(7):
        memory = cell(torch.randn(1, 3), memory)
        loss = loss + memory.pow(2).mean()
        if turn % 3 == 2:
            loss.backward()
            loss = 0
"""
GENERATOR = """
    import torch
    from torch import nn

    def fit():
        maker = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        judge = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        by_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
        for _ in range(2):
            image = maker(torch.randn(4, 2))
            verdict = judge(image).mean()
            by_judge.zero_grad()
            verdict.backward()
            by_judge.step()
            other = -judge(image).mean()
            other.backward()

    fit()
"""
TWO_LOSSES = """
    import torch
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def losses():
        hidden = body(torch.randn(2, 3)).exp()
        return head(hidden).mean(), hidden.square().mean()

    for _ in range(2):
        first, second = losses()
        first.backward()
        second.backward()
"""
KEPT = """
    import torch

    class Trainer:
        def __init__(self):
            self.cell = torch.nn.GRUCell(3, 4)
            self.hidden = None

        def step(self, x):
            if self.hidden is None:
                self.hidden = torch.zeros(2, 4)
            self.hidden = self.cell(x, self.hidden)
            return self.hidden.pow(2).mean()

        def train(self):
            for _ in range(3):
                loss = self.step(torch.randn(2, 3))
                loss.backward()

    Trainer().train()
"""
MADE_IN_INIT = """
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 3))
            self.place = torch.sin(self.weight).sum(0)

        def forward(self, x):
            return (x @ self.weight + self.place).tanh()

    net = Encoder()
    for _ in range(2):
        net(torch.randn(2, 3)).sum().backward()
"""
ROWS = """
    import torch
    x = torch.randn(3, requires_grad=True)
    y = (x ** 2).sin()
    rows = [torch.autograd.grad(y[i], x)[0] for i in range(1)]
    for i in range(1, 3):
        rows.append(torch.autograd.grad(y[i], x)[0])
"""
LOSSES_IN_A_LIST = """
    import torch
    net = torch.nn.Linear(2, 1)
    losses = []
    for _ in range(3):
        losses.append(net(torch.randn(4, 2)).tanh().mean())
        sum(losses).backward()
"""
SAME_ROOT_IN_A_LOOP = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    loss = net(torch.randn(2, 3)).sum()
    for _ in range(3):
        loss.backward()
"""
PROGRAMS = {
    "state in a helper": (STATE_IN_A_HELPER, "PB302", "state = learn("),
    "every third turn": (EVERY_THIRD_TURN, "PB302", "memory = cell("),
    "generator": (GENERATOR, "PB303", "image = maker("),
    "two losses": (TWO_LOSSES, "PB303", "first.backward()"),
    "made in init": (MADE_IN_INIT, "PB304", "self.place ="),
    "kept": (KEPT, "PB305", "self.hidden = self.cell("),
    "losses in a list": (LOSSES_IN_A_LIST, "PB306", "losses.append("),
    "same root in a loop": (SAME_ROOT_IN_A_LOOP, "PB301", "loss.backward()"),
}


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize(("program", "code", "line"), PROGRAMS.values(), ids=PROGRAMS)
def test_each_way_is_told_apart(program, code, line, level):
    report = told(program, level)
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert found["confidence"] == "high"
    assert any(line in each["text"] for each in found["lines"])


@pytest.mark.parametrize(
    "program", [STATE_IN_A_HELPER, EVERY_THIRD_TURN, GENERATOR, TWO_LOSSES, MADE_IN_INIT, KEPT], ids=range(6)
)
def test_the_edits_mend_it(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    (found,) = told(file)["diagnoses"]
    assert found["fix"]["confidence"] == "high"
    edits = [Edit(**each) for each in found["fix"]["edits"]]
    mended = told(applied(edits, str(file)))
    assert mended["error"] is None


def test_rows_of_a_jacobian_need_the_graph_again():
    report = told(ROWS)
    assert report["diagnoses"][0]["code"] in {"PB307", "PB303"}
