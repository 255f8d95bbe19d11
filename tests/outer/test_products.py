"""What is made layer by layer against J row by row, in float64; and that it was made layer by layer."""

from __future__ import annotations

import pytest
import torch

import pullback as pb
from pullback.errors import StrategyError
from pullback.jacobian import by_layers
from pullback.outer import products

from .models import CASES, case_of, rows

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
# Several contributions that go to different places, or are multiplied by a mask: inner products do not follow.
APART = {"called twice", "sliced", "selected", "chunks", "masked"}


def jacobian(case, **how):
    if case.seed:
        torch.manual_seed(3)
    return pb.jacobian(case.f, *case.args, wrt=case.wrt, strategy="outer", **how)


@pytest.mark.parametrize("name", CASES)
def test_gram_norms_and_normal_matrix(name):
    case = case_of(name)
    expected = rows(case)
    J = jacobian(case)
    layers = J._passes.layers()
    assert len(layers.mixed) == case.mixed
    assert sum(not layers.is_contracted(k) for k in range(len(layers.found.parts))) == case.alone
    assert layers.lead == case.lead
    if case.alone == len(layers.found.parts):
        with pytest.raises(StrategyError, match="'outer' cannot build"):
            J.gram()
        return
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
    assert "uᵀKu equals |uᵀJ|²" in J.plan().checked
    noted = " ".join(J.plan().notes)
    assert noted.count("examples mix before they reach it") <= case.mixed
    assert case.mixed == len(layers.found.parts) or J.plan().chosen == "outer"
    torch.testing.assert_close(J.row_norms(), expected.norm(dim=1), **CLOSE)
    assert "a few rows" in J.plan().checked
    torch.testing.assert_close(J.norm("fro"), expected.norm(), **CLOSE)
    N = J.normal()
    torch.testing.assert_close(N.diagonal(), expected.square().sum(0), **CLOSE)
    assert "norms of columns from its factors" in " ".join(J.plan().notes) or case.mixed
    if not case.mixed:
        torch.testing.assert_close(N.matrix(), expected.T @ expected, **CLOSE)
        assert "some examples at a time" in " ".join(J.plan().notes)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("less", [True, False])
def test_both_ways_to_a_gram_matrix_and_to_norms(name, less, monkeypatch):
    """Inner products of the factors, wherever they fit together; and rows made of outer products."""
    for module in (products, by_layers):
        monkeypatch.setattr(module, "gram_is_less", lambda *_: less)
    monkeypatch.setattr(products, "_norms_are_less", lambda *_: less)
    case = case_of(name)
    expected, J = rows(case), jacobian(case)
    if case.alone == len(J._passes.layers().found.parts):
        return
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
    noted = " ".join(J.plan().notes)
    if less and not case.alone and name not in APART:
        assert products.FROM_TERMS in noted
    if not less:
        assert products.FROM_TERMS not in noted
    torch.testing.assert_close(J.row_norms(), expected.norm(dim=1), **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_rows(name):
    case = case_of(name)
    expected = rows(case)
    J = jacobian(case)
    if case.mixed or len(expected) == 2:
        with pytest.raises(StrategyError) as caught:
            J.matrix()
        assert "mixed before they reach" in caught.value.got or "counts enough examples" in caught.value.got
        torch.testing.assert_close(jacobian_by_rows(case).matrix(), expected, **CLOSE)
        return
    torch.testing.assert_close(J.matrix(), expected, **CLOSE)
    assert J.plan().chosen == "outer"
    assert J.plan().passes * J._passes.layers().examples == J.shape[0]
    by_leaf = jacobian(case).dense()
    flat = torch.utils._pytree.tree_leaves(by_leaf)
    assert sum(each.numel() for each in flat) == expected.numel()
    if case.wrt == "parameters" and not isinstance(case.f(*case.args), dict):
        parts = [part.reshape(len(expected), -1) for part in flat]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, **CLOSE)
    out = torch.full_like(expected, torch.nan)
    jacobian(case).matrix(out=out)
    torch.testing.assert_close(out, expected, **CLOSE)


def jacobian_by_rows(case):
    if case.seed:
        torch.manual_seed(3)
    return pb.jacobian(case.f, *case.args, wrt=case.wrt)
