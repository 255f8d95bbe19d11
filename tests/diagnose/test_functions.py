"""Custom Functions and hooks: the cause, the line of it, and edits after which the program runs."""

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import told

FUNCTION = """
import torch
from torch.autograd import Function

class Scale(Function):
    @staticmethod
    def forward(ctx, x, k):
        {forward}

    @staticmethod
    def backward(ctx, g):
        {backward}

def loss(x):
    return Scale.apply(x, 3.0).sum()

x = torch.ones(4, requires_grad=True)
loss(x).backward()
assert x.grad.eq(3).all()
"""

FUNCTIONS = [
    ("PB701", "ctx.k = k; return x * k", "return g * ctx.k, g.sum()"),
    ("PB703", "ctx.k = k; return x * k", "return g * ctx.k"),
    ("PB704", "ctx.k = k; return x * k", "return (g * ctx.k).numpy(), None"),
    ("PB707", "ctx.save_for_backward(x, k); return x * k", "x, k = ctx.saved_tensors; return g * k, None"),
    ("PB717", "return x * k", "return g * ctx.k, None"),
    ("PB717", "ctx.factor = k; return x * k", "return g * ctx.facto, None"),
]

HOOK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def edit(self, g):
        {hook}

    def forward(self, x):
        out = self.layer(x)
        out.register_hook(self.edit)
        return out

net = Net()
net(torch.ones(1, 3)).sum().backward()
assert net.layer.bias.grad is not None
"""

HOOKS = [
    ("PB731", "return g.mean()"),
    ("PB732", "return g.double() * 2"),
    ("PB733", "return float(g.norm())"),
    ("PB734", "g *= 2; return g"),
]


def mended(report, file, folder):
    """The program after the edits of its diagnosis, run."""
    edits = [Edit(**{**each, "file": str(file)}) for each in report["diagnoses"][0]["fix"]["edits"]]
    assert edits
    new = folder / "mended.py"
    new.write_text(applied(edits, str(file)))
    return told(new)


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize(("code", "forward", "backward"), FUNCTIONS)
def test_a_function_is_mended(code, forward, backward, level, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(FUNCTION.format(forward=forward, backward=backward))
    report = told(file, level)
    assert [each["code"] for each in report["diagnoses"]] == [code]
    assert any(each["line"] in (8, 12) for each in report["diagnoses"][0]["lines"])
    assert mended(report, file, tmp_path)["error"] is None


@pytest.mark.parametrize(("code", "hook"), HOOKS)
def test_a_hook_is_mended(code, hook, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(HOOK.format(hook=hook))
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == [code]
    assert {10, 14} <= {each["line"] for each in report["diagnoses"][0]["lines"]}
    assert mended(report, file, tmp_path)["error"] is None


def test_the_gradient_is_counted_among_the_tensors():
    report = told(
        """
        import torch

        class Mix(torch.autograd.Function):
            @staticmethod
            def forward(ctx, mode, fixed, w):
                ctx.save_for_backward(fixed, w)
                return fixed @ w

            @staticmethod
            def backward(ctx, g):
                fixed, w = ctx.saved_tensors
                return None, None, g.t() @ fixed

        w = torch.randn(3, 2, requires_grad=True)
        Mix.apply("plain", torch.randn(4, 3), w).sum().backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB702"
    assert "for w" in diagnosis["cause"]
    assert "fixed.t() @ g" in diagnosis["fix"]["code"] or "fixed.T @ g" in diagnosis["fix"]["code"]


def test_an_error_of_another_kind_in_backward_is_not_certain():
    report = told(FUNCTION.format(forward="ctx.k = k; return x * k", backward="return g @ g.T.nothing"))
    assert [(each["code"], each["confidence"]) for each in report["diagnoses"]] == [("PB720", "medium")]
