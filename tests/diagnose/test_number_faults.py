"""Numbers that are not finite or not there, zero gradients, seeds: found where they are, silent where all is right."""

import pytest

from tests.diagnose.harness import codes, told

FAULTS = {
    "returns of an episode of one step": (
        "PBA325",
        """
        import torch
        net = torch.nn.Linear(2, 1)
        returns = torch.tensor([1.0])
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)  # culprit
        (net(torch.randn(1, 2)).squeeze(1) * returns).mean().backward()
        """,
    ),
    "scores behind the choice of an expert": (
        "PBA349",
        """
        import torch
        from torch.nn import functional as F
        gate, experts = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        x = torch.randn(5, 3)
        chosen = gate(x).argmax(dim=-1)  # culprit
        (experts(x) * F.one_hot(chosen, 2).float()).square().mean().backward()
        """,
    ),
    "a root in a method": (
        "PBA321",
        """
        import torch

        class Length(torch.nn.Module):
            def forward(self, x):
                return (x * x).sum(-1).sqrt()  # culprit

        x = torch.zeros(2, 3, requires_grad=True)
        for _ in range(2):
            Length()(x).sum().backward()
        """,
    ),
    "a quotient under where": (
        "PBA322",
        """
        import torch

        def ratio(a, b):
            quotient = a / b  # culprit
            return torch.where(b > 0, quotient, torch.zeros_like(a))

        a, b = torch.ones(3, requires_grad=True), torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
        ratio(a, b).sum().backward()
        """,
    ),
    "a mask times a logarithm": (
        "PBA323",
        """
        import torch
        p = torch.tensor([0.0, 0.5], requires_grad=True)
        keep = torch.tensor([0.0, 1.0])
        terms = p.log()  # culprit
        (keep * terms).sum().backward()
        """,
    ),
    "sign of a parameter": (
        "PBA341",
        """
        import torch
        net = torch.nn.Linear(3, 2)
        code = torch.sign(net(torch.randn(4, 3)))  # culprit
        (code - 1).pow(2).mean().backward()
        """,
    ),
    "a layer norm summed": (
        "PBA343",
        """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.LayerNorm(8))
        out = net(torch.randn(4, 3))
        out.sum().backward()  # culprit
        """,
    ),
    "a threshold in a function": (
        "PBA346",
        """
        import torch

        def gate(x, level):
            open_ = x > level  # culprit
            return x * open_

        level = torch.nn.Parameter(torch.tensor(0.1))
        w = torch.nn.Parameter(torch.randn(5))
        gate(w * 2, level).sum().backward()
        """,
    ),
    "a parameter as a number": (
        "PBA350",
        """
        import math
        import torch

        def forward(x, log_scale):
            scale = math.exp(log_scale.item())  # culprit
            return x * scale

        log_scale = torch.nn.Parameter(torch.tensor(0.3))
        w = torch.nn.Parameter(torch.randn(5))
        forward(w, log_scale).pow(2).sum().backward()
        """,
    ),
    "attention to padding only": (
        "PBA328",
        """
        import torch

        class Attention(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.v = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x, pad):
                s = self.q(x) @ x.transpose(1, 2)
                s = s.masked_fill(pad[:, None, :], float("-inf"))
                return torch.softmax(s, dim=-1) @ self.v(x)  # culprit

        pad = torch.tensor([[False, True, True], [True, True, True]])
        Attention()(torch.randn(2, 3, 4), pad).pow(2).mean().backward()
        """,
    ),
    "a loss scaled beyond float16": (
        "PBA326",
        """
        import torch
        w = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float16))
        loss = (torch.randn(3, 4, dtype=torch.float16) @ w).pow(2).mean()
        (loss * 2.0**17).backward()  # culprit
        """,
    ),
    "spikes without a slope": (
        "PBA346",
        """
        import torch
        first, last = torch.nn.Linear(6, 10), torch.nn.Linear(10, 2)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        for _ in range(2):
            v = first(torch.randn(3, 6))
            spikes = torch.where(v > 0, torch.ones_like(v), torch.zeros_like(v))  # culprit
            optimizer.zero_grad()
            last(spikes).pow(2).mean().backward()
            optimizer.step()
        """,
    ),
    "classes as numbers": (
        "PBA351",
        """
        import torch

        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(5, 3), torch.nn.Linear(5, 1)

            def forward(self, x):
                return self.a(x).argmax(dim=1).float(), self.b(x)  # culprit

        net = Two()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            label, size = net(torch.randn(8, 5))
            loss = torch.nn.functional.mse_loss(label, torch.ones(8)) + size.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
}

RIGHT = {
    "a teacher that chooses": """
        import torch
        teacher, student = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(8, 5)
            scores = teacher(x).softmax(1)
            sure, label = (scores.max(1).values > 0.4).float(), scores.argmax(1)
            loss = torch.nn.functional.cross_entropy(student(x), label, reduction="none")
            optimizer.zero_grad()
            (loss * sure).mean().backward()
            optimizer.step()
        """,
    "a relu by hand": """
        import torch
        first, last = torch.nn.Linear(6, 10), torch.nn.Linear(10, 2)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        for _ in range(2):
            v = first(torch.randn(3, 6))
            optimizer.zero_grad()
            last(v * (v > 0)).pow(2).mean().backward()
            optimizer.step()
        """,
    "masked attention": """
        import torch
        q = torch.randn(4, 4, requires_grad=True)
        mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
        a = (q @ q.T).masked_fill(mask, float("-inf")).softmax(-1)
        (a @ q).pow(2).mean().backward()
        """,
    "where selected twice": """
        import torch
        x = torch.tensor([0.0, 2.0], requires_grad=True)
        safe = torch.where(x > 0, x, torch.ones_like(x))
        torch.where(x > 0, safe.log(), torch.zeros_like(x)).sum().backward()
        """,
    "a custom straight-through Round": """
        import torch

        class Round(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, g):
                return g

        w = torch.randn(4, requires_grad=True)
        Round.apply(w * 3).pow(2).sum().backward()
        """,
    "some units are off": """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        net(torch.randn(32, 4)).mean().backward()
        """,
    "slopes of a batch": """
        import torch
        t = torch.linspace(0, 1, 8).reshape(-1, 1).requires_grad_()
        u = torch.tanh(3 * t)
        (slope,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
        """,
    "numbers for the log": """
        import torch
        temperature = torch.nn.Parameter(torch.tensor(2.0))
        (torch.randn(3) / temperature).pow(2).mean().backward()
        history = [temperature.item()]
        print(history[0] * 2)
        """,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_line(name):
    code, program = FAULTS[name]
    report = told(program, "audit")
    found = [each for each in report["findings"] if each["code"] == code]
    assert found, codes(report)
    line = next(number for number, text in enumerate(program.splitlines(), 1) if "# culprit" in text)
    assert line in [mark["line"] for mark in found[0]["lines"]]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_no_finding(name):
    report = told(RIGHT[name], "audit")
    assert report["error"] is None
    assert codes(report) == []
