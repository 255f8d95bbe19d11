"""Errors of transforms, forward mode, gradcheck and of Pullback itself: the cause, the line and the fix."""

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

PROGRAMS = {
    "scalar": ("PB801", 7, """
        import torch

        class Trainer:
            def __init__(self):
                self.scale = torch.ones(3)
            def loss(self, w):
                return self.scale * w
            def step(self):
                return torch.func.grad(self.loss)(torch.ones(3))

        Trainer().step()
    """),
    "branch": ("PB811", 3, """
        import torch
        def f(x, t):
            if x.max() > t:
                y = x - t
            else:
                y = x * 2
            return y.sum()
        g = torch.vmap(f, in_dims=(0, None))
        g(torch.randn(5, 2), 0.3)
    """),
    "random": ("PB812", 3, """
        import torch
        def f(x):
            return x + torch.rand(2)
        noisy = torch.vmap(f)
        noisy(torch.ones(3, 2))
    """),
    "unbatched": ("PB813", 3, """
        import torch
        def powers(x):
            out = torch.zeros(4)
            for i in range(4):
                out[i] = x ** i
            return out
        torch.vmap(powers)(torch.arange(3.0))
    """),
    "anomaly": ("PB851", 5, """
        import torch
        class Distance(torch.nn.Module):
            def forward(self, a, b):
                squares = ((a - b) ** 2).sum(-1)
                return torch.sqrt(squares)
        a = torch.ones(3, 2, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            Distance()(a, torch.ones(3, 2)).mean().backward()
    """),
}  # fmt: skip


def program(name):
    """A program without the line break in front, so that its lines count from 1."""
    import textwrap

    return textwrap.dedent(PROGRAMS[name][2]).lstrip("\n")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_and_the_line_are_found(name):
    code, line, _ = PROGRAMS[name]
    report = told("import warnings; warnings.simplefilter('ignore'); " + program(name))
    assert codes(report) == [code], report["error"]
    assert line in [each["line"] for each in report["diagnoses"][0]["lines"]]


@pytest.mark.parametrize("name", ["branch", "random", "unbatched"])
def test_the_edits_mend_the_program(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program(name))
    edits = told(file)["diagnoses"][0]["fix"]["edits"]
    file.write_text(applied([Edit(**each) for each in edits], str(file)))
    assert told(file)["error"] is None


@pytest.mark.parametrize(
    "call", ["pb.backward(y, torch.ones(4))", "pb.grad(y.detach(), x)", "pb.check(3, torch.ones(3))"]
)
def test_errors_of_pullback_are_diagnosed(call):
    report = told(f"import torch\nimport pullback as pb\nx = torch.ones(3, requires_grad=True)\ny = x * 2\n{call}\n")
    assert codes(report) == ["PB001"]
    found = report["diagnoses"][0]
    assert found["lines"][0]["line"] == 5
    assert found["fix"]["text"]
