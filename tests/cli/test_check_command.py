"""``pullback check``: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pullback.cli.main import main

SOURCE = """
import torch
from torch import nn


def smooth(x, y):
    return torch.sin(x) * y


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return -3 * ctx.saved_tensors[0] ** 2 * g


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).tanh()


def whole(n):
    return n * 2


constant = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "checked_source.py"
    path.write_text(SOURCE)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, args)])


def test_a_right_function(source: Path) -> None:
    result = run(f"{source}:smooth", "--input", "3,2", "--input", "2", "--order", "2")
    assert result.exit_code == 0, result.output
    assert "check of smooth: right" in result.output
    assert "second order: reverse mode against differences" in result.output


def test_inputs_of_a_function_are_tried_out(source: Path) -> None:
    result = run(f"{source}:Right")
    assert result.exit_code == 0, result.output
    assert "output by argument 0, argument 1" in result.output or "output by x, w" in result.output


def test_a_wrong_function_exits_with_1_and_is_written(source: Path, tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    result = run(f"{source}:Wrong", "--json", written)
    assert result.exit_code == 1
    assert "WRONG" in result.output
    assert f"wrote {written}" in result.output
    told = json.loads(written.read_text())
    assert told["passed"] is False
    entry = next(each for each in told["findings"] if not each["harmless"])["entries"][0]
    assert float(entry["ours"]) == pytest.approx(-float(entry["numeric"]), rel=1e-4)


def test_a_module(source: Path) -> None:
    result = run(f"{source}:Net", "--input", "5,3")
    assert result.exit_code == 0, result.output
    assert "linear.weight" in result.output


def test_inputs_from_a_file(source: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 3)), y=np.ones(3))
    result = run(f"{source}:smooth", "--inputs", tmp_path / "data.npz")
    assert result.exit_code == 0, result.output
    assert "in float64" in result.output


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("{}:Net",), "random tensors of the shapes"),
        (("{}:smooth", "--input", "3"), "cannot be called with 1 inputs"),
        (("{}:whole", "--input", "3:int64"), "there is no floating-point tensor to differentiate by"),
        (("{}:constant",), "is int, which cannot be called"),
        (("{}:nothing",), "has no 'nothing'"),
        (("{}:smooth", "--input", "3", "--input", "3", "--json", "no/such/folder.json"), "cannot write"),
        (("{}:smooth", "--order", "3"), "3 is not in the range"),
    ],
)
def test_errors(source: Path, args: tuple[str, ...], text: str) -> None:
    result = run(*(arg.format(source) for arg in args))
    assert result.exit_code not in {0, None}
    assert text in result.output
