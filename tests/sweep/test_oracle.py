"""The judge is judged: what must be seen is seen, in every dtype; and rounding is not taken for an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback as pb
from pullback.errors import StrategyError
from pullback.strategies.colored_rows import ColoredRows

from .examine import examine
from .forced import Tally, force, kinds
from .oracle import RTOL, difference, differences, truth_of

DTYPES = sorted(RTOL, key=str)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_an_error_is_seen_in_every_dtype(dtype: torch.dtype, share: float) -> None:
    """One entry, of the largest size or a tenth of it, off by thrice what is allowed."""
    exact = torch.ones(4, 5, dtype=torch.float64)
    exact[1, 2] = share
    wrong = exact.clone()
    wrong[1, 2] += 3 * RTOL[dtype]
    assert "1 of 20 entries wrong" in difference(wrong, exact, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_no_error(dtype: torch.dtype) -> None:
    exact = torch.randn(40, 50, dtype=torch.float64)
    assert not difference(exact.to(dtype), exact, dtype=dtype)


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ([1.0, 2.0], [[1.0, 2.0]], "shape"),
        ([1.0, torch.nan], [1.0, 2.0], "NaN in other places"),
        ([1.0, 2.0], [torch.nan, 2.0], "NaN in other places"),
        ([1.0, torch.inf], [1.0, 2.0], "infinities"),
        ([1.0, torch.inf], [1.0, -torch.inf], "infinities"),
        ([0.0, 0.0], [0.0, 1.0], "1 of 2 entries wrong"),
        ([1 + 1e-3j], [1.0], "1 of 2 entries wrong"),
    ],
)
def test_what_is_different(found: Any, expected: Any, words: str) -> None:
    assert words in difference(torch.tensor(found), torch.tensor(expected))


def test_products_pass_over_what_is_not_finite_but_not_over_nan() -> None:
    expected = torch.tensor([torch.nan, 1.0])
    assert not difference(torch.tensor([5.0, 1.0]), expected, nonfinite=False)
    assert difference(torch.tensor([5.0, torch.nan]), expected, nonfinite=False)


def test_the_oracle_and_finite_differences_agree() -> None:
    def f(x: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"a": (x[0] @ x[1]).tanh(), "b": x[0].square().sum()}

    x = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    assert not difference(truth_of(f, x).real, differences(f, x, step=1e-5), rtol=1e-6)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128])
@pytest.mark.parametrize("method", ["matrix", "push", "pull", "push_stack", "pull_stack"])
def test_a_fault_of_pullback_is_seen(method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result in turn made half as large again: examine finds it."""
    original = getattr(pb.Jacobian, method)

    def faulty(self: pb.Jacobian, *args: Any) -> Any:
        found = original(self, *args)
        return found * 1.5 if isinstance(found, Tensor) else tuple(part * 1.5 for part in found)

    x = (1 + torch.rand(4, dtype=torch.float64)).to(dtype)

    def f(x: Tensor) -> Tensor:
        return x.sin() * 2 + x[0]

    assert not examine(f, x).problems
    monkeypatch.setattr(pb.Jacobian, method, faulty)
    assert examine(f, x).problems


def test_a_draw_too_many_is_seen() -> None:
    """An f that is not the function of the oracle: another number of random draws."""
    x = torch.randn(3, dtype=torch.float64)
    truth = truth_of(lambda x: x * torch.rand(()), x)
    found = examine(lambda x: x * torch.rand(()) + 0 * torch.rand(()), x, truth)
    assert any("generator" in problem for problem in found.problems)


def _forced() -> Tally:
    """A small function by every strategy."""
    x = 1 + torch.rand(8, 2, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return x.sin() * x.sum(1, keepdim=True)

    tally = Tally()
    force("f", lambda strategy: pb.jacobian(f, x, strategy=strategy), truth_of(f, x), tally, kinds())
    return tally


def test_forced_strategies_are_counted() -> None:
    tally = _forced()
    assert not tally.problems
    assert not tally.warned
    assert {("blocks", "blocks"), ("colored-rows", "sparse"), ("rows", "matrix")} <= set(tally.built)
    assert ("star", "matrix") in tally.fewer_than(1)
    assert tally.refused["star"] == 2


@pytest.mark.parametrize("method", ["matrix", "blocks", "sparse"])
def test_a_fault_of_a_forced_strategy_is_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is a little off, one that is missing, and an error that is no refusal."""
    original = getattr(pb.Jacobian, method)
    monkeypatch.setattr(pb.Jacobian, method, lambda self: original(self) * (1 + 1e-6))
    assert any("entries wrong" in problem for problem in _forced().problems)

    def broken(self: pb.Jacobian) -> Tensor:
        raise RuntimeError("out of order")

    monkeypatch.setattr(pb.Jacobian, method, broken)
    assert any("out of order" in problem for problem in _forced().problems)

    def refused(self: pb.Jacobian) -> Tensor:
        raise StrategyError("no", got="no reason at all", fix="none")

    monkeypatch.setattr(pb.Jacobian, method, refused)
    tally = _forced()
    assert not any(want == method for _, want in tally.built)
    assert method != "matrix" or "f, matrix by rows: refused" in tally.problems


def test_a_wrong_recovery_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pullback warns and takes another way, which is right: the warning is what is seen, and nothing was built."""
    original = ColoredRows.entries
    monkeypatch.setattr(ColoredRows, "entries", lambda self, *args: original(self, *args) * 1.5)
    tally = _forced()
    assert "f, matrix by colored-rows" in tally.warned
    assert ("colored-rows", "matrix") not in tally.built
