"""The strict level: saved tensors that change, and Functions whose backward does not fit."""

import pytest

from tests.diagnose.harness import codes, told

CHANGED = {
    "data": "h.data.mul_(5)",
    "numpy": "h.detach().numpy()[:] = 9",
    "array": "array = h.detach().numpy(); array += 3",
}
START = "import torch\nx = torch.tensor([2.0], requires_grad=True)\nh = x * 1\ny = h ** 2\n"


@pytest.mark.parametrize("how", CHANGED)
def test_a_saved_tensor_that_changes_is_found(how):
    report = told(START + CHANGED[how] + "\ny.sum().backward()\n", "strict")
    found = [each for each in report["findings"] if each["code"] == "PBA901"]
    assert not report["trouble"]
    assert [each["lines"][0]["line"] for each in found] == [5]


def test_what_does_not_change_is_not_reported():
    report = told(START + "z = h.detach().numpy().copy(); z += 1\ny.sum().backward()\n", "strict")
    assert codes(report) == []


def test_gradients_that_are_meant_to_differ_are_not_reported():
    report = told(
        """
        import torch
        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()
            @staticmethod
            def backward(ctx, grad):
                return grad
        class Reversal(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)
            @staticmethod
            def backward(ctx, grad):
                return -grad
        x = torch.tensor([0.3, 1.2], requires_grad=True)
        (Straight.apply(x) + Reversal.apply(x)).sum().backward()
        """,
        "strict",
    )
    assert [code for code in codes(report) if code.startswith("PBA9")] == []


def test_apply_is_as_it_was_afterwards():
    report = told(
        "import torch\nfrom pullback.diagnose.session import Session\nbefore = vars(torch.autograd.Function)['apply']\n"
        "s = Session('strict'); s.start(); torch.ones(2); s.stop(); s.report(None)\n"
        "assert vars(torch.autograd.Function)['apply'] is before\n"
    )
    assert report["error"] is None
