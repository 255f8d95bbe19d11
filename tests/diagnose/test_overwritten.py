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


STATE_OVER_RETAINED_GRAPHS = """
    import torch
    from torch import nn
    cell, read = nn.RNNCell(2, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*cell.parameters(), *read.parameters()], 0.05)
    state = torch.zeros(3, 4)
    for _ in range(4):
        x = torch.randn(3, 2)
        state = cell(x, state)
        loss = (read(state) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
"""
ROWS_FROM_ROWS = """
    import torch
    force = torch.zeros(4, requires_grad=True)

    def path(force):
        place = torch.zeros(5, 2)
        for k in range(4):
            place[k + 1] = place[k] + 0.1 * (torch.sin(place[k]) + force[k])
        return place

    path(force)[-1].sum().backward()
"""
PROTOTYPES = """
    import torch
    from torch import nn

    class Prototypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 2)
            self.register_buffer("centres", torch.randn(4, 2))

        def forward(self, x, y):
            z = self.body(x)
            scores = z @ self.centres.t()
            with torch.no_grad():
                for k in y.unique():
                    self.centres[k] = 0.9 * self.centres[k] + 0.1 * z[y == k].mean(0)
            return nn.functional.cross_entropy(scores, y)

    net = Prototypes()
    net(torch.rand(6, 3), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
"""
JUDGED_BEFORE_THE_STEP = """
    import torch
    from torch import nn

    class Pair:
        def __init__(self):
            self.maker = nn.Linear(2, 3)
            self.judge = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    pair = Pair()
    steps = {"judge": torch.optim.SGD(pair.judge.parameters(), 0.1)}
    image = pair.maker(torch.randn(5, 2))
    score = pair.judge(image)
    of_judge = score.mean() - pair.judge(torch.randn(5, 3)).mean()
    of_maker = -score.mean()
    of_judge.backward(retain_graph=True)
    steps["judge"].step()
    of_maker.backward()
"""
AVERAGE_IN_A_CLASS = """
    import copy
    import torch
    from torch import nn

    class Average:
        def __init__(self, net):
            self.shadow = copy.deepcopy(net)

        @torch.no_grad()
        def update(self, net):
            for mine, theirs in zip(self.shadow.parameters(), net.parameters()):
                mine.mul_(0.9).add_(theirs, alpha=0.1)

    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    average = Average(net)
    x = torch.randn(4, 3)
    loss = (net(x) - average.shadow(x)).pow(2).sum()
    average.update(net)
    loss.backward()
"""
ROWS_OF_A_ZIP = """
    import torch
    weight = torch.randn(2, 3, requires_grad=True)
    scores = weight * 2
    for row, factor in zip(scores, torch.ones(2)):
        row *= factor
    scores.sum().backward()
"""
# With the code, the culprit, and what the code of the fix has in it.
MORE = {
    "state over retained graphs": (STATE_OVER_RETAINED_GRAPHS, "PB407", "state = cell(", "state = state.detach()"),
    "rows from rows": (ROWS_FROM_ROWS, "PB402", "place[k + 1] =", "torch.sin(place[k].clone())"),
    "prototypes": (PROTOTYPES, "PB410", "self.centres[k] =", "self.centres = self.centres.clone()"),
    "judged before the step": (JUDGED_BEFORE_THE_STEP, "PB406", 'steps["judge"].step()', "score = pair.judge(image)"),
    "average in a class": (AVERAGE_IN_A_CLASS, "PB408", "mine.mul_(", "average.update(net)"),
    "rows of a zip": (ROWS_OF_A_ZIP, "PB430", "row *= factor", "    scores[i] *= factor"),
}


@pytest.mark.parametrize(("program", "code", "line", "cure"), MORE.values(), ids=MORE)
def test_the_fix_is_made_for_the_program(program, code, line, cure, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    report = told(file, "trace")
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert any(line in each["text"] for each in found["lines"])
    assert cure in found["fix"]["code"]
    mended = told(applied([Edit(**each) for each in found["fix"]["edits"]], str(file)))
    assert mended["error"] is None


def test_what_is_made_again_after_a_step_is_what_depends_on_it():
    (found,) = told(JUDGED_BEFORE_THE_STEP)["diagnoses"]
    assert "image = " not in found["fix"]["code"]


def test_a_tensor_without_a_name_is_called_by_its_place():
    program = """
        import torch
        def soft(x, w):
            g = x.abs()
            out = g * w
            g += 1
            h = w.abs()
            h.mul_(1)
            return out.sum() + h.sum()
        soft(torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)).backward()
    """
    (found,) = told(program)["diagnoses"]
    assert "its first argument" in found["cause"]


STEPPED = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    one, two = (net(torch.randn(8, 4)).pow(2).mean() for _ in range(2))
    one.backward()
    optimizer.step()
    two.backward()
"""
RESULT = """
    import torch
    def loss(w):
        h = w.exp()
        h += 1
        return h.sum()
    loss(torch.randn(3, requires_grad=True)).backward()
"""


@pytest.mark.parametrize(
    ("program", "name", "shape", "made"),
    [(STEPPED, "net.2.weight", [1, 4], None), (RESULT, "the result of exp", [3], "ExpBackward0")],
)
def test_the_tensor_is_shown_as_the_user_has_it(program, name, shape, made):
    """Not as the node kept it: as a view of the parameter, and without its place in the graph."""
    ((found,),) = (each["tensors"] for each in told(program)["diagnoses"])
    assert (found["name"], found["shape"], found["grad_fn"], found["requires_grad"]) == (name, shape, made, True)
