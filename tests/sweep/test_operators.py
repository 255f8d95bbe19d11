"""Every differentiable operator of PyTorch's database: J equals the row-by-row reverse passes.

A few samples of each operator; all of them, about 12,800, with

    PULLBACK_SWEEP=full python -m pytest tests/sweep -n auto
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback as pb
from pullback.errors import ArgumentError

from . import known
from .examine import examine, only_pullback_warnings
from .operators import MODE, Case, cases, operators
from .oracle import Truth, difference, differences, flat, fresh, truth_of, truth_with_all_seeds

pytestmark = pytest.mark.sweep

# The operators of torch 2.13 that have a derivative in float64 (540), or in complex128 only (3).
AT_LEAST = 543
# Central differences with a step of 1e-5 are good to about 1e-9 of the largest derivatives nearby.
STEP, ARBITRATION = 1e-5, 1e-6
# How many samples of each disputed operator are arbitrated; all in the full sweep.
DISPUTES = 6


def test_the_sweep_is_complete() -> None:
    assert len(operators()) >= AT_LEAST


def test_every_name_in_the_lists_is_an_operator() -> None:
    assert set(known.LISTED) <= set(operators())


@pytest.mark.parametrize("name", sorted(set(operators()) - set(known.SPARSE_INPUT)))
def test_operator(name: str) -> None:
    """Rows, columns, the plan's choice and products, on samples of one operator; the lists are exact."""
    problems, refused, warned, count = [], [], [], 0
    for case in cases(name, every=name in known.LISTED):
        found = examine(case.f, case.x, _truth(case, name))
        problems += [f"{case.name}: {problem}" for problem in found.problems]
        refused += [f"{case.name}: {found.refused}"] * bool(found.refused)
        warned += [f"{case.name}: {text}" for text in found.warned]
        count += 1
    assert count, "no sample is small enough: raise LARGEST_MATRIX, or add one to _more_samples"
    assert not problems, "\n".join(problems)
    assert bool(refused) == (name in known.NO_FORWARD), refused or "columns work: take it off NO_FORWARD"
    assert bool(warned) == (name in known.WARNED), "\n".join(warned) or "no warning: take it off the lists"


@pytest.mark.parametrize("name", sorted(known.SPARSE_INPUT))
def test_sparse_input_is_refused(name: str) -> None:
    for case in cases(name, every=True):
        with pytest.raises(ArgumentError, match="not a strided tensor"):
            pb.jacobian(case.f, case.x)


@pytest.mark.parametrize("name", sorted(set(known.WARNED | known.WRONG_WITHOUT_OTHER_SEEDS) - set(known.UNDEFINED)))
def test_finite_differences_arbitrate(name: str) -> None:
    """Where two of torch's ways disagree, finite differences say which is wrong: as the lists have it."""
    blamed: Counter[str] = Counter()
    with only_pullback_warnings():
        for case in itertools.islice(_disputed(name), None if MODE == "full" else DISPUTES):
            blamed.update(_wrong_ways(case, name))
    assert bool(blamed["rows"]) == (name in known.ROWS_ARE_WRONG), blamed
    assert bool(blamed["rows without other seeds"]) == (
        name in known.ROWS_ARE_WRONG | known.WRONG_WITHOUT_OTHER_SEEDS
    ), blamed
    if name in known.FORWARD_IS_WRONG:
        assert blamed["forward"], blamed
    if name in known.BATCHING_IS_WRONG:
        assert blamed["batched rows"], blamed
    if name in known.NOISE:
        assert not blamed


def _disputed(name: str) -> Iterator[Case]:
    """The samples at which the ways disagree."""
    for case in cases(name, every=True):
        if name in known.WRONG_WITHOUT_OTHER_SEEDS or examine(case.f, case.x, _truth(case, name)).warned:
            yield case


@pytest.mark.parametrize("name", sorted(known.UNDEFINED))
def test_undefined_value(name: str) -> None:
    """Pullback warns only at the samples where the value itself is NaN."""
    for case in cases(name, every=True):
        truth = _truth(case, name)
        if examine(case.f, case.x, truth).warned:
            assert any(part.isnan().any() for part in pytree.tree_leaves(truth.value))


def _wrong_ways(case: Case, name: str) -> list[str]:
    """The ways to J that finite differences contradict, where an output carries a graph."""
    exact, live = differences(case.f, case.x, step=STEP), _truth(case, name).live
    ways = {
        "rows": _truth(case, name).real,
        "rows without other seeds": truth_of(case.f, case.x).real,
        "batched rows": _batched_rows(case),
        "forward": _columns(case),
    }
    return [
        way
        for way, matrix in ways.items()
        if matrix is not None and difference(matrix[live], exact[live], rtol=ARBITRATION, nonfinite=False)
    ]


def _truth(case: Case, name: str) -> Truth:
    """The oracle of a case; with zeros as the other outputs' seeds where torch needs them."""
    with only_pullback_warnings():
        known_to_need = name in known.WRONG_WITHOUT_OTHER_SEEDS
        return (truth_with_all_seeds if known_to_need else truth_of)(case.f, case.x)


def _batched_rows(case: Case) -> Tensor | None:
    """The matrix by torch.func.vjp under vmap, each row for three different multiples; None if that raises."""
    torch.manual_seed(0)
    m = case.size[1]
    eye = torch.eye(m, dtype=torch.float64)
    try:
        _, pull = torch.func.vjp(lambda x: flat(case.f(x)), fresh(case.x))
        (rows,) = torch.func.vmap(pull)(torch.cat([eye, 2 * eye, 3 * eye]))
    except RuntimeError:
        return None
    thrice = torch.cat([part.reshape(3 * m, like.numel()) for part, like in zip(rows, case.x, strict=True)], dim=1)
    return thrice[:m]


def _columns(case: Case) -> Tensor | None:
    """The matrix by torch.func.jvp, column by column; None if that raises."""
    x = fresh(case.x)
    columns = []
    for j in range(case.size[0]):
        unit = torch.zeros(case.size[0], dtype=torch.float64)
        unit[j] = 1
        parts = unit.split([part.numel() for part in x])
        tangent = tuple(part.reshape(like.shape) for part, like in zip(parts, x, strict=True))
        torch.manual_seed(0)
        try:
            columns.append(torch.func.jvp(lambda x: flat(case.f(x)), (x,), (tangent,))[1])
        except RuntimeError:
            return None
    return torch.stack(columns, dim=1)
