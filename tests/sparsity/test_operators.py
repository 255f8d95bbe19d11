"""Every differentiable operator of PyTorch's database: the pattern holds all non-zeros, and nothing else.

A few small samples of each operator; all of them with

    PULLBACK_SWEEP=full python -m pytest tests/sparsity -n auto
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..sweep.known import SPARSE_INPUT
from ..sweep.operators import MODE, Case, cases, dtype_of, operators
from . import known
from .oracle import examine

pytestmark = pytest.mark.sweep

# So many samples of an operator, those whose Jacobian has not more entries than this; or else the smallest.
SAMPLES = 3
LARGEST_MATRIX = 3000
# The share of operators whose pattern may be too large.
INEXACT_SHARE = 0.1
# The Hessian of a sample with so many inputs.
SMALLEST_HESSIAN, LARGEST_HESSIAN = 4, 40
# Where a program is recorded, torch takes other formulas for some second derivatives (of products, say), so that what
# is rounding noise in a plain pass may be an exact zero there.
NOISE = 1e-13
TWICE = [
    name
    for name, op in sorted(operators().items())
    if op.supports_gradgrad and dtype_of(op) is torch.float64 and name not in SPARSE_INPUT | known.NOT_TWICE
]


def test_every_name_in_the_lists_is_an_operator() -> None:
    for name in set(known.LISTED) - set(operators()):  # torch took it away: a stub is left that says so
        with pytest.raises(RuntimeError, match="is now removed"):
            getattr(torch, name)(torch.eye(2))


def test_most_patterns_are_exact() -> None:
    assert len(known.INEXACT) <= INEXACT_SHARE * len(operators())


@pytest.mark.parametrize("name", sorted(set(operators()) - set(SPARSE_INPUT)))
def test_operator(name: str) -> None:
    """The pattern for all points and for this one, at a few samples; the lists are exact for the few samples."""
    wrong, spare, unrecordable = [], [], []
    for case in samples(name):
        found = examine(case.f, case.x)
        wrong += [f"{case.name}: {text}" for text in found.wrong]
        spare += [f"{case.name}: {found.spare} too many; no rule: {sorted(found.unknown)}"] * bool(found.spare)
        unrecordable += [f"{case.name}: {found.unrecordable}"] * bool(found.unrecordable)
    assert not wrong, "\n".join(wrong)
    assert bool(unrecordable) == (name in known.UNRECORDABLE), unrecordable or "recorded: take it off UNRECORDABLE"
    if MODE != "full":
        # The few are others in each version of torch: of an operator on the list, any sample is looked for then.
        others = cases(name, every=True) if name in known.INEXACT and not spare else ()
        spare += next(([f"{case.name}: too many"] for case in others if examine(case.f, case.x).spare), [])
        assert bool(spare) == (name in known.INEXACT), "\n".join(spare) or "exact: take it off INEXACT"


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name: str) -> None:
    """The pattern of a Hessian, as the Jacobian of a gradient, holds all non-zeros."""
    wrong = []
    for case in _smallest(name):
        found = examine(_gradient_of(case.f), case.x, noise=NOISE, more=False)
        wrong += [f"{case.name}: {text}" for text in [*found.wrong, found.unrecordable] if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(known.NOT_TWICE))
def test_no_second_derivatives(name: str) -> None:
    with pytest.raises(RuntimeError, match="not implemented"):
        next(examine(_gradient_of(case.f), case.x) for case in _smallest(name))


def _gradient_of(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The gradient of the sum of a function's outputs, each times a number."""

    def gradient(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        outputs = [leaf for leaf in pytree.tree_leaves(f(x)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        numbers = [torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).reshape(out.shape) for out in outputs]
        total = sum((torch.view_as_real(out.resolve_conj()).sum(-1) if out.is_complex() else out).mul(number).sum()
                    for out, number in zip(outputs, numbers, strict=True))  # fmt: skip
        found = torch.autograd.grad(total, x, create_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(leaf) if part is None else part for part, leaf in zip(found, x, strict=True))

    return gradient


def samples(name: str) -> Iterator[Case]:
    """A few small samples."""
    found = list(cases(name))
    if MODE != "full":
        small = [case for case in found if case.size[0] * case.size[1] <= LARGEST_MATRIX]
        found = small[:SAMPLES] or [min(found, key=lambda case: case.size[0] * case.size[1])]
    yield from found


def _smallest(name: str) -> Iterator[Case]:
    """The sample with the fewest inputs of those that have a few; all in the full sweep."""
    found = sorted(cases(name), key=lambda case: case.size[0])
    small = [case for case in found if case.size[0] <= LARGEST_HESSIAN] or found[:1]
    enough = [case for case in small if case.size[0] >= SMALLEST_HESSIAN] or small
    yield from small if MODE == "full" else enough[:1]
