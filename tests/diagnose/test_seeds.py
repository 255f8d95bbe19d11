"""What autograd was asked for: the right cause among its neighbours, the culprit's line, and a fix that runs."""

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

PROGRAMS = {
    "a criterion without reduction, in a class": (
        "PB102",
        """
        import torch
        from torch import nn

        class Trainer:
            def __init__(self):
                self.net = nn.Linear(3, 2)
                self.criterion = nn.CrossEntropyLoss(reduction="none")  # <-

            def compute(self, x, t):
                return self.criterion(self.net(x), t)

            def step(self, x, t):
                loss = self.compute(x, t)
                loss.backward()

        Trainer().step(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
        """,
    ),
    "weights without a reduction": (
        "PB102",
        """
        import torch
        import torch.nn.functional as F

        def weighted(out, target, weights):
            each = F.mse_loss(out, target, reduction="none")  # <-
            return each * weights

        net = torch.nn.Linear(3, 1)
        for _ in range(2):
            value = weighted(net(torch.randn(4, 3)), torch.zeros(4, 1), torch.rand(4, 1))
            value.backward()
        """,
    ),
    "the output instead of a loss": (
        "PB101",
        """
        import torch

        def train(net, x):
            out = net(x)  # <-
            out.backward()

        train(torch.nn.Linear(3, 2), torch.randn(4, 3))
        """,
    ),
    "a derivative of several values": (
        "PB101",
        """
        import torch

        x = torch.linspace(0, 1, 5).requires_grad_()
        u = x.sin()  # <-
        du = torch.autograd.grad(u, x, create_graph=True)[0]
        """,
    ),
    "losses of tasks in a tensor": (
        "PB103",
        """
        import torch

        net = torch.nn.Linear(3, 2)

        def losses(x):
            out = net(x)
            parts = [out[:, k].square().mean() for k in range(2)]
            return torch.stack(parts)  # <-

        losses(torch.randn(4, 3)).backward()
        """,
    ),
    "old GAN code in a class": (
        "PB106",
        """
        import torch

        class Gan:
            def __init__(self):
                self.critic = torch.nn.Linear(3, 1)
                self.one = torch.ones(1)  # <-

            def step(self, x):
                score = self.critic(x).mean()
                score.backward(self.one)

        Gan().step(torch.randn(4, 3))
        """,
    ),
    "the third seed": (
        "PB105",
        """
        import torch

        x = torch.randn(2, requires_grad=True)
        outputs = [x.exp(), x.sin(), x.repeat(2)]
        seeds = [torch.ones(2), torch.ones(2), torch.ones(2)]  # <-
        torch.autograd.grad(outputs, x, seeds)
        """,
    ),
    "a flat seed handed over": (
        "PB105",
        """
        import torch

        def pull(y, seed):
            y.backward(seed)

        w = torch.randn(3, 1, requires_grad=True)
        v = torch.rand(3)  # <-
        pull(w * 2, v)
        """,
    ),
    "a number as the seed": (
        "PB109",
        """
        import torch

        w = torch.randn(3, requires_grad=True)
        scale = 128.0  # <-
        loss = w.sum()
        loss.backward(scale)
        """,
    ),
    "a flag in autograd.backward": (
        "PB108",
        """
        import torch

        w = torch.randn(3, requires_grad=True)
        torch.autograd.backward(w.sum(), True)  # <-
        """,
    ),
    "three outputs, two seeds": (
        "PB107",
        """
        import torch

        w = torch.randn(3, requires_grad=True)
        a, b, c = w * 2, w.sum(), w * 3
        torch.autograd.backward((a, b, c), (torch.ones(3), torch.tensor(1.0)))  # <-
        """,
    ),
    "a loss and its parts": (
        "PB112",
        """
        import torch

        net = torch.nn.Linear(3, 1)

        def compute(x):
            out = net(x)
            return out.square().mean(), {"out": out.detach()}  # <-

        loss = compute(torch.randn(4, 3))
        loss.backward()
        """,
    ),
    "a trailing comma": (
        "PB112",
        """
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean(),  # <-
        loss.backward()
        """,
    ),
    "a list of losses": (
        "PB112",
        """
        import torch

        net = torch.nn.Linear(3, 1)
        losses = []  # <-
        for _ in range(3):
            losses.append(net(torch.randn(4, 3)).square().mean())
        losses.backward()
        """,
    ),
    "an output object": (
        "PB113",
        """
        from dataclasses import dataclass

        import torch

        @dataclass
        class Output:
            loss: torch.Tensor
            logits: torch.Tensor

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(3, 2)

            def forward(self, x):
                logits = self.lin(x)
                return Output(logits.square().mean(), logits)  # <-

        output = Model()(torch.randn(2, 3))
        output.backward()
        """,
    ),
    "the criterion of a class": (
        "PB114",
        """
        import torch

        class Trainer:
            def __init__(self):
                self.net, self.criterion = torch.nn.Linear(3, 1), torch.nn.MSELoss()

            def step(self, x):
                value = self.criterion(self.net(x), torch.zeros(4, 1))  # <-
                self.criterion.backward()

        Trainer().step(torch.randn(4, 3))
        """,
    ),
    "a forward without return": (
        "PB115",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(3, 1)

            def forward(self, x):
                loss = self.lin(x).square().mean()  # <-

        model = Model()
        loss = model(torch.randn(4, 3))
        loss.backward()
        """,
    ),
    "backward called twice in a chain": (
        "PB115",
        """
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean().backward()  # <-
        loss.backward()
        """,
    ),
    "a dict of losses to autograd.backward": (
        "PB118",
        """
        import torch

        w = torch.randn(3, requires_grad=True)
        losses = {"a": w.sum(), "b": w.square().sum()}  # <-
        torch.autograd.backward(losses)
        """,
    ),
    "a part taken after the forward pass, in a function": (
        "PB602",
        """
        import torch

        def velocity(u, xt):
            t = xt[:, 1]  # <-
            return torch.autograd.grad(u.sum(), t)[0]

        xt = torch.rand(5, 2, requires_grad=True)
        velocity((xt ** 2).sum(1), xt)
        """,
    ),
    "a layer that forward skips": (
        "PB601",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.spare = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

            def forward(self, x):
                return self.used(x)

        model = Model()
        loss = model(torch.randn(4, 3)).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))  # <-
        """,
    ),
    "no gradient asked of the input in time": (
        "PB603",
        """
        import torch

        net = torch.nn.Linear(2, 1)

        def penalty(x):
            out = net(x).tanh()
            x.requires_grad_(True)  # <-
            slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
            return slope.square().sum()

        penalty(torch.rand(4, 2))
        """,
    ),
    "an input that is data": (
        "PB607",
        """
        import torch

        net = torch.nn.Linear(2, 1)

        def residual(points):
            u = net(points)
            return torch.autograd.grad(u.sum(), points)[0]

        grid = torch.rand(6, 2)  # <-
        residual(grid)
        """,
    ),
    "a generator of inputs gone through": (
        "PB120",
        """
        import torch

        net = torch.nn.Linear(2, 1)
        params = net.parameters()  # <-
        penalty = sum(p.square().sum() for p in params)
        torch.autograd.grad(penalty, params)
        """,
    ),
    "None among the gradients, in a comprehension": (
        "PB612",
        """
        import torch

        def norms(loss, params):
            grads = torch.autograd.grad(loss, params, allow_unused=True)  # <-
            return [g.norm() for g in grads]

        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        norms(a.sum(), [a, b])
        """,
    ),
    "a weight bound anew in a class": (
        "PB610",
        """
        import torch

        class Model:
            def __init__(self):
                self.w = torch.zeros(3, requires_grad=True)

            def step(self, x):
                loss = ((x * self.w).sum() - 1) ** 2
                loss.backward()
                self.w = self.w - 0.1 * self.w.grad  # <-

        model = Model()
        for _ in range(2):
            model.step(torch.rand(3))
        """,
    ),
    "a moved leaf": (
        "PB610",
        """
        import torch

        w = torch.randn(3, requires_grad=True).double()  # <-
        for _ in range(2):
            (w ** 2).sum().backward()
            step = 0.1 * w.grad
        """,
    ),
    "the gradient of a hidden layer": (
        "PB610",
        """
        import torch

        net = torch.nn.Linear(3, 2)
        hidden = net(torch.randn(1, 3)).relu()  # <-
        hidden.sum().backward()
        print(hidden.grad.norm())
        """,
    ),
    "an update of nothing": (
        "PB614",
        """
        import torch

        w = torch.zeros(3)  # <-
        b = torch.zeros(3, requires_grad=True)
        loss = ((w + b - 1) ** 2).sum()
        loss.backward()
        with torch.no_grad():
            b -= 0.1 * b.grad
            w -= 0.1 * w.grad
        """,
    ),
    "clipping what was not reached": (
        "PB611",
        """
        import torch

        def clip(model, most):
            for p in model.parameters():
                p.grad.clamp_(-most, most)

        model = torch.nn.ModuleList([torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)])
        loss = model[0](torch.randn(4, 3)).mean()
        loss.backward()  # <-
        clip(model, 1.0)
        """,
    ),
}


def culprit(program):
    """The number of the marked line."""
    return next(number for number, line in enumerate(program.strip("\n").split("\n"), 2) if "# <-" in line)


def judged(program, code, level, tmp_path):
    """The diagnosis of a program is this one, with the marked line, and its edits make it run."""
    report = told(program, level)
    assert not report["trouble"]
    assert [each["code"] for each in report["diagnoses"]] == [code], (codes(report), report["error"])
    found = report["diagnoses"][0]
    assert culprit(program) in [line["line"] for line in found["lines"]], found["lines"]
    edits = [Edit(each["file"], each["first"], each["last"], each["text"]) for each in found["fix"]["edits"]]
    if found["fix"]["confidence"] == "high":
        assert edits
        mended = told(applied(edits, edits[0].file))
        assert mended["error"] is None, applied(edits, edits[0].file)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_and_its_line(name, level, tmp_path):
    code, program = PROGRAMS[name]
    judged(program, code, level, tmp_path)


def test_a_reduction_in_a_table_of_criteria_is_marked():
    program = """
        import functools
        import torch
        import torch.nn.functional as F
        LOSSES = {"each": functools.partial(F.cross_entropy, reduction="none")}
        class Trainer:
            def __init__(self, name):
                self.net, self.loss = torch.nn.Linear(3, 2), LOSSES[name]
            def step(self, x, y):
                loss = self.loss(self.net(x), y)
                loss.backward()
        Trainer("each").step(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    """
    (found,) = told(program)["diagnoses"]
    assert found["code"] == "PB102"
    assert any("functools.partial" in each["text"] for each in found["lines"])


def test_a_criterion_that_returns_nothing_is_followed():
    program = """
        import torch
        class Criterion(torch.nn.Module):
            def forward(self, x, y):
                loss = (x - y).pow(2).mean()
        net = torch.nn.Linear(2, 1)
        loss = Criterion()(net(torch.rand(3, 2)), torch.rand(3, 1))
        loss.backward()
    """
    (found,) = told(program)["diagnoses"]
    assert (found["code"], found["confidence"]) == ("PB115", "high")
    assert any("(x - y).pow(2)" in each["text"] for each in found["lines"])


def test_an_output_without_a_loss_is_marked():
    program = """
        from typing import NamedTuple
        import torch
        class Output(NamedTuple):
            loss: object
            scores: torch.Tensor
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head = torch.nn.Linear(3, 2)
            def forward(self, x, labels=None):
                scores = self.head(x)
                loss = None if labels is None else torch.nn.functional.cross_entropy(scores, labels)
                return Output(loss, scores)
        batch = {"x": torch.rand(2, 3)}
        out = Model()(batch["x"], labels=batch.get("labels"))
        out.loss.backward()
    """
    (found,) = told(program)["diagnoses"]
    assert found["code"] == "PB115"
    assert any("out = Model()" in each["text"] for each in found["lines"])
