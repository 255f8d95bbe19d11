"""What the layers' products do where something is in the way: faults, memory, dtypes, modes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import MemoryLimitError, PullbackWarning, VerificationError
from pullback.jacobian import by_layers, gram, passes, structure
from pullback.outer import find, products
from pullback.outer.contraction import Dense
from pullback.outer.owners import Owners
from pullback.outer.rule import RULES

from .models import Free, random, whole

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
B = 9


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def jacobian(f=None, x=None, **how):
    how = {"wrt": "parameters", "strategy": "outer"} | how
    return pb.jacobian(net() if f is None else f, random(B, 4) if x is None else x, **how)


def by_rows(f, x, wrt="parameters"):
    leaves = list(f.parameters()) if wrt == "parameters" else [x]
    out = []
    for each in f(x).flatten():
        parts = torch.autograd.grad(each, leaves, retain_graph=True, allow_unused=True)
        out.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(out)


def faults(monkeypatch):
    """Ways in which what is found could be wrong, each planted by a function."""
    real_number, real_owners = find.Walk.number, by_layers.Layers.apart

    def other_numbers(self, value):
        found = real_number(self, value)
        return None if found is None else found * 1.001

    def other_weight(self, found, place, weight):
        return real_contribution(self, found, place, weight * 1.001)

    real_contribution = find.Walk._contribution
    real_dense = Dense.tensor
    return {
        "coefficients": lambda: monkeypatch.setattr(Dense, "tensor", lambda self: real_dense(self).roll(1, 0)),
        "numbers": lambda: monkeypatch.setattr(find.Walk, "number", other_numbers),
        "weights": lambda: monkeypatch.setattr(find.Walk, "_contribution", other_weight),
        "owners": lambda: monkeypatch.setattr(
            Owners, "take", lambda self, tensor, dim: tensor.flip(dim % tensor.ndim).unflatten(dim, self.index.shape)
            if tensor.ndim == 4 else tensor.unflatten(dim, self.index.shape)),
        "parts left out": lambda: monkeypatch.setattr(find.Walk, "parts", _leave_out(find.Walk.parts)),
    }, real_owners  # fmt: skip


def _leave_out(real):
    def parts(self, answer, shape):
        found = real(self, answer, shape)
        return found[:-1] if len(shape) == 1 else found

    return parts


@pytest.mark.parametrize("fault", ["coefficients", "numbers", "weights", "owners", "parts left out"])
@pytest.mark.parametrize("what", ["gram", "row_norms", "diagonal", "normal", "matrix"])
def test_a_fault_is_found_and_the_rows_are_taken(fault, what, monkeypatch):
    f, x = net(), random(B, 4)
    expected = by_rows(f, x)
    planted, _ = faults(monkeypatch)
    planted[fault]()
    monkeypatch.setattr(gram, "FEWEST_ENTRIES", 0)
    monkeypatch.setattr("pullback.strategies.outer.FEWEST_ENTRIES", 0)
    make = {
        "gram": lambda J: (J.gram(), expected @ expected.T),
        "row_norms": lambda J: (J.row_norms(), expected.norm(dim=1)),
        "diagonal": lambda J: (J.normal().diagonal(), expected.square().sum(0)),
        "normal": lambda J: (J.normal().matrix(), expected.T @ expected),
        "matrix": lambda J: (J.matrix(), expected),
    }[what]
    with pytest.warns(PullbackWarning, match="disagrees with a plain reverse pass"):
        have, want = make(jacobian(f, x, strategy="auto"))
    torch.testing.assert_close(have, want, **CLOSE)
    with pytest.raises(VerificationError):
        make(jacobian(f, x, strategy="auto", strict=True))


def test_without_a_fault_nothing_is_said(monkeypatch):
    monkeypatch.setattr(gram, "FEWEST_ENTRIES", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        J = jacobian(strategy="auto", strict=True)
        J.gram()
    assert J.plan().chosen == "outer"
    assert any(products.FROM_TERMS in note for note in J.plan().notes)


def test_wrong_products_are_found_too(monkeypatch):
    """The factors are right, the Gram matrix that is made of them is not."""
    monkeypatch.setattr(gram, "FEWEST_ENTRIES", 0)
    real = products.Grams.gram

    def wrong(self, parameter):
        found, how = real(self, parameter)
        return found * 1.001, how

    monkeypatch.setattr(products.Grams, "gram", wrong)
    f, x = net(), random(B, 4)
    expected = by_rows(f, x)
    with pytest.warns(PullbackWarning, match="gram by layers"):
        have = jacobian(f, x, strategy="auto").gram()
    torch.testing.assert_close(have, expected @ expected.T, **CLOSE)


def test_wrong_norms_are_found_too(monkeypatch):
    monkeypatch.setattr(gram, "FEWEST_ENTRIES", 0)
    real = by_layers.row_norms
    monkeypatch.setattr(by_layers, "row_norms", lambda parameter, most: real(parameter, most) * 1.001)
    f, x = net(), random(B, 4)
    with pytest.warns(PullbackWarning, match="row norms by layers"):
        have = jacobian(f, x, strategy="auto").row_norms()
    torch.testing.assert_close(have, by_rows(f, x).norm(dim=1), **CLOSE)


@pytest.mark.parametrize("memory", [4_000, 10_000, 40_000])
def test_little_memory_changes_no_number(memory, monkeypatch):
    monkeypatch.setattr(gram, "FEWEST_ENTRIES", 0)
    for module in (products, by_layers):
        monkeypatch.setattr(module, "PART", memory)
    f = Free(lambda s, x: s.m[1](s.m[0](x).tanh()).cumsum(1), nn.Linear(4, 6), nn.Linear(6, 2)).double()
    x = random(B, 3, 4)
    leaves = list(f.parameters())
    expected = torch.stack([
        torch.cat([part.flatten() for part in torch.autograd.grad(each, leaves, retain_graph=True)])
        for each in f(x).flatten()
    ])  # fmt: skip
    for less in (True, False):
        monkeypatch.setattr(products, "gram_is_less", lambda *_, less=less: less)
        J = jacobian(f, x, strategy="auto", memory=memory)
        torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
        torch.testing.assert_close(J.row_norms(), expected.norm(dim=1), **CLOSE)
        torch.testing.assert_close(J.normal().diagonal(), expected.square().sum(0), **CLOSE)


def test_the_whole_of_the_normal_matrix_has_to_fit():
    with pytest.raises(MemoryLimitError) as caught:
        jacobian(nn.Linear(40, 300).double(), random(B, 40), memory=2**21).normal().matrix()
    assert "larger than the memory limit" in str(caught.value)


def test_a_gram_matrix_from_rows_that_do_not_fit_together():
    f = lambda x: torch.stack([(x * k).sin().sum() for k in range(1, 40)])  # noqa: E731
    x = random(400)
    J = pb.jacobian(f, x, memory=60_000)
    expected = by_rows(f, x.requires_grad_(), wrt=0)
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_summed_in_single_precision(dtype):
    f, x = net(dtype), random(B, 4).to(dtype)
    expected = by_rows(net().to(dtype).double(), x.double())
    allowed = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    J = jacobian(f, x)
    for have, want in (
        (J.gram(), expected @ expected.T),
        (J.row_norms(), expected.norm(dim=1)),
        (J.normal().diagonal(), expected.square().sum(0)),
        (J.normal().matrix(), expected.T @ expected),
        (J.matrix(), expected),
        (J.norm("fro"), expected.norm()),
    ):
        assert have.dtype == dtype
        assert float((have.double() - want).abs().max()) <= allowed * float(want.abs().max())


def test_autocast_is_recorded():
    f, x = net(torch.float32), random(B, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        J = jacobian(f, x)
        have = J.gram()
        assert "batched by vmap" in J.plan().route
        expected = jacobian(f, x, strategy="rows").matrix()
    torch.testing.assert_close(have, expected @ expected.T, rtol=0.02, atol=0.02)


def test_frozen_and_chosen_parameters():
    f, x = net(), random(B, 4)
    f[0].weight.requires_grad_(False)
    J = pb.jacobian(f, x, wrt=("0.weight", "2.bias"), strategy="outer")
    have = J.gram()
    f[0].weight.requires_grad_(True)
    expected = by_rows(f, x)
    chosen = torch.cat([expected[:, :24], expected[:, -3:]], dim=1)
    torch.testing.assert_close(have, chosen @ chosen.T, **CLOSE)
    assert J.plan().chosen == "outer"


def test_from_tensors_already_computed():
    f, x = net(), random(B, 4)
    J = pb.jacobian_of(f(x), tuple(f.parameters()), strategy="outer")
    expected = by_rows(f, x)
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
    assert J.plan().chosen == "outer"


def test_results_that_are_differentiated_again_come_from_rows():
    f, x = net(), random(B, 4).requires_grad_()
    J = pb.jacobian(f, x, wrt="parameters", create_graph=True)
    J.row_norms().square().sum().backward()
    assert float(x.grad.abs().max()) > 0
    total = lambda x: by_rows_graph(f, x).square().sum()  # noqa: E731
    torch.testing.assert_close(x.grad, torch.autograd.functional.jacobian(total, x.detach()), **CLOSE)
    assert pb.jacobian(f, x, wrt="parameters", create_graph=True).gram().requires_grad


def by_rows_graph(f, x):
    leaves = list(f.parameters())
    return torch.stack([
        torch.cat([part.flatten() for part in torch.autograd.grad(each, leaves, create_graph=True)])
        for each in f(x).flatten()
    ])  # fmt: skip


def test_inside_a_transform():
    x = random(3)
    have = torch.func.vmap(lambda x: pb.jacobian(torch.sin, x).gram())(x[None])
    torch.testing.assert_close(have[0], x.cos().square().diag())


def test_holomorphic_functions_have_a_hermitian_gram_matrix():
    z = torch.randn(3, dtype=torch.complex128)
    J = pb.jacobian(lambda z: z.cumsum(0) ** 2, z, holomorphic=True)
    matrix = J.matrix()
    torch.testing.assert_close(J.gram(), matrix @ matrix.mH)
    torch.testing.assert_close(J.row_norms(), torch.linalg.vector_norm(matrix, dim=1))
    torch.testing.assert_close(J.normal().matrix(), matrix.mH @ matrix)
    with pytest.raises(pb.errors.StrategyError, match="row_norms"):
        pb.jacobian(lambda z: z.abs(), z).row_norms()


def test_outputs_without_a_graph_have_rows_of_zeros():
    f = Free(lambda s, x: {"y": s.m[0](x), "n": x.detach().sum(1)}, nn.Linear(4, 3)).double()
    x = random(B, 4)
    J = jacobian(f, x)
    live = by_rows(f.m[0], x)
    expected = torch.cat([torch.zeros(B, live.shape[1]), live]).double()
    order = [leaf.name for leaf in J.outputs.leaves]
    expected = expected if "n" in order[0] else torch.cat([live, torch.zeros(B, live.shape[1])])
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
    torch.testing.assert_close(J.row_norms(), expected.norm(dim=1), **CLOSE)


def test_the_normal_operator_is_an_operator():
    f, x = net(), random(B, 4)
    expected = by_rows(f, x)
    N = jacobian(f, x).normal()
    full = expected.T @ expected
    assert N.shape == full.shape
    assert N.T is N
    v = random(N.shape[0], 3)
    torch.testing.assert_close(N @ v, full @ v, **CLOSE)
    torch.testing.assert_close(N @ v[:, 0], full @ v[:, 0], **CLOSE)
    torch.testing.assert_close((N + N) @ v[:, 0], 2 * full @ v[:, 0], **CLOSE)
    structured = {name: torch.ones_like(p) for name, p in f.named_parameters()}
    flat = torch.cat([part.flatten() for part in (N @ structured).values()])
    torch.testing.assert_close(flat, full.sum(1), **CLOSE)
    torch.testing.assert_close(torch.as_tensor(N.to_scipy() @ v[:, 1].numpy()), full @ v[:, 1], **CLOSE)


def test_rows_by_example_are_blocks():
    f = nn.Sequential(nn.Linear(4, B), nn.Tanh(), nn.Linear(B, 3)).double()
    x = random(B, 4)  # the parameters begin with as many rows as there are examples
    expected = by_rows(f, x).view(B, 3, -1)
    J = pb.jacobian(f, x, wrt="parameters")
    have = J.blocks()
    torch.testing.assert_close(have, expected, **CLOSE)
    out = torch.full_like(have, torch.nan)
    assert jacobian(f, x).blocks(out=out) is out
    torch.testing.assert_close(out, expected, **CLOSE)
    two = Free(lambda s, x: {"a": s.m[0](x), "b": s.m[0](x).sum(1)}, f).double()
    torch.testing.assert_close(
        pb.jacobian(two, x, wrt="parameters").blocks(), torch.cat([expected, expected.sum(1, keepdim=True)], 1), **CLOSE
    )
    assert pb.jacobian(nn.Linear(3, 2), torch.ones(0, 3), wrt="parameters").blocks().shape == (0, 2, 8)
    with pytest.raises(pb.errors.StrategyError, match="as blocks"):
        pb.jacobian(lambda x: x.sum(), torch.ones(3)).blocks()


def test_small_and_batched_jacobians_are_not_looked_through(monkeypatch):
    monkeypatch.setattr(passes, "record", lambda _: pytest.fail("a program was recorded"))
    pb.jacobian(net(), random(B, 4), wrt="parameters").gram()
    pb.jacobian(torch.sin, random(20, 20)).row_norms()
    pb.jacobian(net(), random(B, 4), wrt="parameters").matrix()


def test_the_plan_says_how(monkeypatch):
    bn = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    J = jacobian(bn, random(B, 4))
    J.gram()
    text = str(J.plan())
    assert "as gram" in text
    assert "0.weight: rows, one reverse pass for each: examples mix before they reach it" in text
    assert "2.weight" in text
    J.row_norms()
    assert "as row norms" in str(J.plan())


def test_the_strategy_is_chosen_for_parameters_and_the_pattern_is_not_looked_for(monkeypatch):
    monkeypatch.setattr("pullback.strategies.outer.FEWEST_ENTRIES", 0)
    monkeypatch.setattr("pullback.strategies.compressed.WORTH_RECORDING", 0)
    monkeypatch.setattr(structure, "find", lambda *_, **__: pytest.fail("a pattern was looked for"))
    f, x = net(), random(B, 4)
    J = pb.jacobian(f, x, wrt="parameters")
    torch.testing.assert_close(J.matrix(), by_rows(f, x), **CLOSE)
    assert J.plan().chosen == "outer"
    assert J.plan().passes == 3


def test_embeddings_of_a_large_table():
    f = Free(lambda s, i: s.m[0](i).mean(1).tanh(), nn.Embedding(500, 3)).double()
    index = whole(500, B, 4)
    J = jacobian(f, index)
    expected = by_rows(f, index)
    torch.testing.assert_close(J.gram(), expected @ expected.T, **CLOSE)
    assert any(products.FROM_TERMS in note for note in J.plan().notes)
    assert RULES.all()["embedding_dense_backward"]
