"""Prepared Jacobians without zeros to speak of: dense matrices and blocks by replayed passes."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap

import pullback as pb
from pullback.errors import GuardError


def mlp(*sizes):
    torch.manual_seed(0)
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double().requires_grad_(False)


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(5, 7, 3), (3, 8, 40), (40, 8, 3), (6, 6)])
def test_dense_at_other_points(sizes):
    f = mlp(*sizes)
    jac = pb.prepare(f, random(sizes[0]))
    for _ in range(3):
        x = random(sizes[0])
        J = jac(x)
        torch.testing.assert_close(J.dense(), jacrev(f)(x), rtol=1e-11, atol=1e-13)
        assert J.plan().route.startswith("recorded program")
        torch.testing.assert_close(J.matrix(), J.dense().reshape(J.shape))
        torch.testing.assert_close(jac(x).sparse().to_dense(), jacrev(f)(x), rtol=1e-11, atol=1e-13)


def test_f_is_not_called():
    calls = []

    def f(x):
        calls.append(1)
        return (x @ x) * x

    jac = pb.prepare(f, random(4))
    jac(random(4)).dense()  # the first is verified
    count = len(calls)
    for _ in range(3):
        jac(random(4)).dense()
    assert len(calls) == count


@pytest.mark.parametrize(("m", "n"), [(2, 7), (7, 2), (3, 3)])
def test_blocks_at_other_points(m, n):
    f = mlp(n, 6, m)
    jac = pb.prepare(f, random(30, n))
    for _ in range(3):
        x = random(30, n)
        J = jac(x)
        torch.testing.assert_close(J.blocks(), vmap(jacrev(f))(x), rtol=1e-11, atol=1e-13)
        assert J.plan().route.startswith("recorded program")
        out = torch.full((30, m, n), torch.nan, dtype=torch.float64)
        assert jac(x).blocks(out=out) is out
        torch.testing.assert_close(out, vmap(jacrev(f))(x), rtol=1e-11, atol=1e-13)


def test_blocks_of_several_tensors():
    def f(inputs):
        return {"p": inputs["a"] * inputs["b"].sum(1, keepdim=True), "q": inputs["b"].sin()}

    inputs = {"a": random(20, 2), "b": random(20, 3)}
    jac = pb.prepare(f, inputs)
    found = jac({"a": inputs["a"] + 1, "b": inputs["b"] - 1}).blocks()
    want = pb.jacobian(f, {"a": inputs["a"] + 1, "b": inputs["b"] - 1}).blocks()
    torch.testing.assert_close(found, want)


def test_examples_that_mix_have_no_blocks():
    jac = pb.prepare(lambda x: x * x.mean(0), random(20, 3))
    with pytest.raises(pb.errors.StrategyError, match="examples mix"):
        jac(random(20, 3)).blocks()


def test_examples_that_may_mix_elsewhere_are_proved_apart_at_each_point():
    """Whether the mean is added is a number of the point, so the program does not keep examples apart."""

    def f(x):
        return x.sin() + (x[0, 0] > 2).to(x.dtype) * x.mean(0)

    calm, wild = torch.rand(20, 3, dtype=torch.float64), torch.rand(20, 3, dtype=torch.float64)
    wild[0] = 3.0
    jac = pb.prepare(f, calm)
    torch.testing.assert_close(jac(calm).blocks(), pb.jacobian(f, calm).blocks())
    with pytest.raises(pb.errors.StrategyError, match="examples mix"):
        jac(wild).blocks()
    torch.testing.assert_close(jac(wild).dense(), jacrev(f)(wild))


def test_a_branch_is_guarded():
    def f(x):
        return x * x.sum() if x[0] > 0 else x.sin() * x.sum()

    jac = pb.prepare(f, torch.ones(4, dtype=torch.float64))
    jac(torch.full((4,), 2.0, dtype=torch.float64)).dense()
    with pytest.raises(GuardError):
        jac(-torch.ones(4, dtype=torch.float64)).dense()


def test_weights_trained_in_between_count():
    net = mlp(4, 5, 4)
    jac, x = pb.prepare(net, random(4)), random(4)
    jac(x).dense()
    with torch.no_grad():
        net[0].weight.mul_(2.0)
    torch.testing.assert_close(jac(x).dense(), jacrev(net)(x), rtol=1e-11, atol=1e-13)


def test_a_hessian_of_a_network():
    net = mlp(3, 4, 1)

    def loss(w):
        return (torch.func.functional_call(net, {"0.weight": w}, (torch.ones(3, dtype=torch.float64),)) ** 2).sum()

    jac = pb.prepare(loss, random(4, 3), of="hessian")
    w = random(4, 3)
    torch.testing.assert_close(jac(w).dense(), jacrev(jacrev(loss))(w), rtol=1e-10, atol=1e-12)


def test_many_passes_run_in_chunks():
    f = mlp(20, 30, 400)
    jac, x = pb.prepare(f, random(20), strategy="rows"), random(20)
    J = jac(x)
    torch.testing.assert_close(J.dense(), jacrev(f)(x), rtol=1e-11, atol=1e-13)
    notes = J.plan().notes
    assert any("32 passes at a time" in note for note in notes)
    assert any("128 passes at a time" in note for note in notes)


def test_compiled_and_not_give_the_same():
    f = mlp(5, 7, 3)
    jac, x = pb.prepare(f, random(5), compile=True), random(5)
    J = jac(x)
    torch.testing.assert_close(J.dense(), jacrev(f)(x), rtol=1e-11, atol=1e-13)
    assert any("compiled" in note for note in J.plan().notes)


def test_random_numbers_call_the_function():
    drop = nn.Dropout(0.5)
    jac = pb.prepare(lambda x: drop(x) * x.sum(), random(6))
    x = random(6)
    torch.manual_seed(3)
    found = jac(x).dense()
    torch.manual_seed(3)
    torch.testing.assert_close(found, pb.jacobian(lambda x: drop(x) * x.sum(), x).dense())


def test_attention_at_other_points():
    """The fused kernel may draw random numbers, so it is not replayed: the function is called."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double().requires_grad_(False)
    jac, x = pb.prepare(block, random(1, 5, 8)), random(1, 5, 8)
    J = jac(x)
    torch.testing.assert_close(J.dense(), pb.jacobian(block, x, strategy="rows").dense(), rtol=1e-9, atol=1e-12)
    assert any("is not replayed" in note for note in jac.plan().notes)
