"""Losses that teach something else, custom Functions and functional calls that are silently wrong."""

import pytest

from tests.diagnose.harness import codes, told

FAULTS = {
    "images and targets without a channel": (
        "PBA301",
        """
        import torch
        net = torch.nn.Conv2d(1, 1, 3, padding=1)
        out = net(torch.randn(4, 1, 6, 6))
        target = torch.randn(4, 6, 6)
        loss = (out - target).abs().mean()  # culprit
        loss.backward()
        """,
    ),
    "an accuracy": (
        "PBA301",
        """
        import torch
        net = torch.nn.Linear(3, 5)
        y = torch.randint(0, 5, (8,))
        out = net(torch.randn(8, 3))
        torch.nn.functional.cross_entropy(out, y).backward()
        pred = out.argmax(dim=1, keepdim=True)
        correct = (pred == y).sum()  # culprit
        """,
    ),
    "sigmoid in the net": (
        "PBA302",
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 1)

            def forward(self, x):
                return torch.sigmoid(self.layer(x)).squeeze(1)  # culprit

        criterion = torch.nn.BCEWithLogitsLoss()
        criterion(Net()(torch.randn(8, 3)), torch.ones(8)).backward()
        """,
    ),
    "a penalty in a function": (
        "PBA518",
        """
        import torch

        def penalty(net, x):
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)  # culprit
            return slope.square().sum(1).mean()

        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        x = torch.randn(5, 3)
        loss = net(x).mean() + 10.0 * penalty(net, x)
        loss.backward()
        """,
    ),
}

RIGHT = {
    "pairwise distances and kernels": """
        import torch
        net = torch.nn.Linear(3, 4)
        z = net(torch.randn(6, 3))
        square = z.pow(2).sum(1, keepdim=True) + z.pow(2).sum(1) - 2 * z @ z.T
        pairs = z[:, 0].unsqueeze(1) - z[:, 0]
        (square.mean() + pairs.abs().mean()).backward()
        """,
    "masks of equal labels": """
        import torch
        net = torch.nn.Linear(3, 4)
        y = torch.randint(0, 2, (6,))
        same = y.view(-1, 1) == y
        z = torch.nn.functional.normalize(net(torch.randn(6, 3)), dim=1)
        (-(z @ z.T).log_softmax(1)[same].mean()).backward()
        """,
    "focal loss": """
        import torch
        net = torch.nn.Linear(3, 4)
        ce = torch.nn.functional.cross_entropy(net(torch.randn(6, 3)), torch.randint(0, 4, (6,)), reduction="none")
        ((1 - torch.exp(-ce)) ** 2 * ce).mean().backward()
        """,
    "steps along a gradient": """
        import torch
        net = torch.nn.Linear(3, 1)
        x = torch.randn(4, 3, requires_grad=True)
        (g,) = torch.autograd.grad(net(x).pow(2).sum(), x)
        net((x + 0.1 * g.sign()).detach()).pow(2).mean().backward()
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
