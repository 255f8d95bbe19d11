"""pb.hessian: the Jacobian of a gradient; symmetric, sparse, and held against torch's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pullback as pb
from pullback.errors import ArgumentError, PullbackError, PullbackWarning, StrategyError, ValueMismatch
from pullback.strategies.base import STRATEGIES

SPARSE = [name for name, each in STRATEGIES.all().items() if "sparse" in each.gives]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def truth(f: Any, x: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(f, x).reshape(x.numel(), x.numel())


def lacking(pattern: pb.Pattern, matrix: Tensor) -> list[list[int]]:
    """The nonzeros that a pattern lacks; what is left of terms that cancel is none."""
    there = np.asarray(pattern.to_scipy().todense())
    nonzero = matrix.abs() > 1e-13 * matrix.abs().max()
    return np.argwhere(nonzero.numpy() & ~there).tolist()


def rosenbrock(x: Tensor) -> Tensor:
    return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()


def arrow(x: Tensor) -> Tensor:
    return (x[0] * x[1:] ** 2).sum() + (x**3).sum()


def grid(x: Tensor) -> Tensor:
    u = x.reshape(3, 4)
    return ((u[1:] - u[:-1]) ** 4).sum() + ((u[:, 1:] - u[:, :-1]) ** 4).sum() + u.sin().sum()


def conv_energy(x: Tensor) -> Tensor:
    kernel = torch.tensor([[[1.0, -2.0, 1.0]]], dtype=x.dtype)
    return torch.tanh(F.conv1d(x[None, None], kernel, padding=1)).square().sum()


FUNCTIONS = {
    "rosenbrock": rosenbrock,
    "arrow": arrow,
    "grid": grid,
    "conv": conv_energy,
    "quadratic": lambda x: (x * x.roll(1)).sum(),
    "linear": lambda x: x.sum(),
    "constant": lambda x: (x.detach() ** 2).sum() + 0 * x.sum(),
    "separable": lambda x: (x**4).sum(),
    "dense": lambda x: x.sum() ** 3,
    "logsumexp": lambda x: x.logsumexp(0),
    "gathered": lambda x: (x[torch.tensor([0, 3, 3])] ** 3 * x[torch.tensor([1, 1, 2])]).sum(),
    "selected": lambda x: (torch.relu(x) ** 3 + torch.where(x > 0, x**2, x**3)).sum(),
    "maximum": lambda x: (torch.maximum(x, x.flip(0)) ** 2).sum(),
    "in place": lambda x: ((x * 1.0).index_add_(0, torch.tensor([0, 2]), x[:2] ** 2) ** 2).sum(),
    "prod": lambda x: x.reshape(3, 4).prod(1).sum(),
    "softmax": lambda x: (x.reshape(3, 4).softmax(1) ** 2).sum(),
    "norm": lambda x: x.reshape(3, 4).norm(dim=1).sum(),
    "matmul": lambda x: torch.trace(x.reshape(3, 4) @ x.reshape(3, 4).T @ x.reshape(3, 4)[:, :3]),
    "a part": lambda x: (x[:3] ** 3).sum() + x[5] * x[7],
    "last": lambda x: x[-1] ** 3,
    "no_grad": lambda x: (x**2 * x.detach().flip(0)).sum(),
    "cumsum": lambda x: (x.cumsum(0) ** 2).sum(),
    "det": lambda x: torch.linalg.det(x[:9].reshape(3, 3)) + x[9] * x[10],
    "shape (1,)": lambda x: (x**2 * x.roll(2)).sum()[None],
}


@pytest.mark.filterwarnings("ignore:.*(forward|no sparsity rule):pullback.errors.PullbackWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_torch(name):
    f = FUNCTIONS[name]
    prepared = pb.prepare(f, randn(12), of="hessian") if name not in {"linear", "constant"} else None
    for seed in range(2):
        x = randn(12, seed=seed)
        want = truth(lambda x: f(x).reshape(()), x)
        H = pb.hessian(f, x)
        assert H.shape == (12, 12)
        torch.testing.assert_close(H.sparse().to_dense(), want)
        torch.testing.assert_close(H.matrix(), want)
        assert not lacking(H.pattern, want)
        assert not H.sparse().requires_grad
        here = pb.hessian(f, x, local=True)
        assert not lacking(here.pattern, want)
        torch.testing.assert_close(here.sparse().to_dense(), want)
        if prepared is not None:
            assert not lacking(prepared.pattern, want)
            torch.testing.assert_close(prepared(x).sparse().to_dense(), want)
        for strategy in SPARSE if seed == 0 else ():
            try:
                torch.testing.assert_close(pb.hessian(f, x, strategy=strategy).sparse().to_dense(), want)
            except StrategyError:
                continue


@pytest.mark.parametrize("name", ["rosenbrock", "arrow", "grid", "quadratic", "separable", "gathered", "a part"])
def test_the_pattern_is_exact_and_symmetric(name):
    f = FUNCTIONS[name]
    union = sum((truth(f, randn(12, seed=seed)) != 0).int() for seed in range(3)) > 0
    pattern = pb.hessian(f, randn(12)).pattern
    assert pattern.symmetric
    assert pattern == pb.Pattern.of(union)


def test_passes_of_rosenbrock():
    H = pb.hessian(rosenbrock, randn(30))
    torch.testing.assert_close(H.sparse().to_dense(), truth(rosenbrock, randn(30)))
    assert H.plan().passes <= 3
    H = pb.hessian(rosenbrock, randn(30), strategy="star")
    H.sparse()
    assert H.plan().passes <= 3
    assert H.pattern.nnz == 3 * 30 - 2


def test_passes_of_the_arrow():
    H = pb.hessian(arrow, randn(40))
    torch.testing.assert_close(H.sparse().to_dense(), truth(arrow, randn(40)))
    assert H.plan().passes <= 2
    H = pb.hessian(arrow, randn(40), strategy="star")
    H.sparse()
    assert H.plan().passes == 2


def test_the_value_is_the_gradient():
    x = randn(6)
    H = pb.hessian(rosenbrock, x)
    torch.testing.assert_close(H.value, torch.func.grad(rosenbrock)(x))
    v = randn(6, seed=1)
    want = truth(rosenbrock, x)
    torch.testing.assert_close(H @ v, want @ v)
    torch.testing.assert_close(H.T @ v, want @ v)
    torch.testing.assert_close(H.diagonal(), want.diagonal())
    torch.testing.assert_close(H.rows(2), want[2])
    torch.testing.assert_close(H.dense(), want)


def test_nested_inputs():
    x = {"a": randn(2), "b": randn(2, 2, seed=1)}

    def f(x: dict[str, Tensor]) -> Tensor:
        return (x["b"] @ x["a"]).pow(2).sum() + x["a"].prod()

    H = pb.hessian(f, x)
    want = torch.func.hessian(f)(x)
    for one in x:
        for other in x:
            torch.testing.assert_close(H.dense()[one][other], want[one][other])
    flat = torch.cat([torch.cat([want[i][j].reshape(x[i].numel(), x[j].numel()) for j in x], 1) for i in x])
    torch.testing.assert_close(H.sparse().to_dense(), flat)
    torch.testing.assert_close(H.value["a"], torch.func.grad(f)(x)["a"])


def test_wrt_and_has_aux():
    def f(x: Tensor, y: Tensor) -> Any:
        return (x**2 * y.flip(0) ** 2).sum(), {"sum": y.sum()}

    x, y = randn(3), randn(3, seed=1)
    H = pb.hessian(f, x, y, wrt=(0, 1), has_aux=True)
    both = torch.cat([x, y])
    want = truth(lambda z: f(z[:3], z[3:])[0], both)
    torch.testing.assert_close(H.sparse().to_dense(), want)
    assert torch.equal(H.aux["sum"], y.sum())
    torch.testing.assert_close(pb.hessian(f, x, y, wrt=1, has_aux=True).sparse().to_dense(), want[3:, 3:])


def test_by_parameters():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    data = randn(4, 2)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).square().mean()

    loss = Loss()
    H = pb.hessian(loss, data, wrt="parameters")
    names = [name for name, _ in loss.named_parameters()]
    shapes = [parameter.shape for parameter in loss.parameters()]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in loss.parameters()])

    def of_flat(z: Tensor) -> Tensor:
        parts = torch.split(z, [shape.numel() for shape in shapes])
        given = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(loss, given, (data,))

    torch.testing.assert_close(H.sparse().to_dense(), truth(of_flat, flat))
    prepared = pb.prepare(loss, data, wrt="parameters", of="hessian")
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.mul_(1.5)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in loss.parameters()])
    torch.testing.assert_close(prepared(data).sparse().to_dense(), truth(of_flat, flat))


def test_layouts_and_dtypes():
    x = randn(8)
    want = truth(rosenbrock, x)
    for layout in ("csr", "csc", "coo", "bsr"):
        torch.testing.assert_close(pb.hessian(rosenbrock, x).sparse(layout).to_dense(), want)
    np.testing.assert_allclose(pb.hessian(rosenbrock, x).sparse("scipy").toarray(), want.numpy())
    found = pb.hessian(rosenbrock, x.float()).sparse()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.to_dense(), want.float(), rtol=1e-4, atol=1e-2)


def test_exactly_symmetric_in_what_star_reads_once():
    """Star reads an entry from its row or from its column, and gives both the same number."""
    H = pb.hessian(grid, randn(12), strategy="star").sparse().to_dense()
    torch.testing.assert_close(H, H.T, rtol=1e-12, atol=1e-12)


def test_create_graph():
    x = randn(5).requires_grad_()

    def f(x: Tensor) -> Tensor:
        return (x[1:] ** 2 * x[:-1] ** 2).sum()

    sparse = pb.hessian(f, x, create_graph=True).sparse()
    (gradient,) = torch.autograd.grad(sparse.values().sum(), x)
    dense = torch.func.hessian(f)
    (want,) = torch.autograd.grad(dense(x).sum(), x)
    torch.testing.assert_close(gradient, want)


def test_explain():
    H = pb.hessian(arrow, randn(4))
    text = H.pattern.explain(0, 2)
    assert "entry (0, 2) can be non-zero" in text
    assert "test_hessian.py" in text
    assert H.pattern.explain(1, 2).startswith("entry (1, 2) is zero")


def test_inside_no_grad():
    with torch.no_grad():
        torch.testing.assert_close(pb.hessian(rosenbrock, randn(5)).sparse().to_dense(), truth(rosenbrock, randn(5)))


def test_nothing_is_left_behind():
    x = randn(5).requires_grad_()
    state = torch.get_rng_state()
    pb.hessian(rosenbrock, x).sparse()
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_has_one_draw():
    def f(x: Tensor) -> Tensor:
        return (F.dropout(x, 0.5) ** 2 * x.roll(1)).sum()

    x = randn(6)
    torch.manual_seed(0)
    want = truth(f, x)
    torch.manual_seed(0)
    H = pb.hessian(f, x)
    torch.testing.assert_close(H.sparse().to_dense(), want)
    torch.testing.assert_close(H.sparse().to_dense(), want)


def test_batchnorm_updates_once():
    module = nn.BatchNorm1d(2).double()

    def f(x: Tensor) -> Tensor:
        return module(x).pow(3).sum()

    def plain(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, module.weight.detach(), module.bias.detach(), True).pow(3).sum()

    found = pb.hessian(f, randn(3, 2)).sparse().to_dense()
    assert module.num_batches_tracked == 1
    torch.testing.assert_close(found, truth(plain, randn(3, 2)))


def test_an_unsymmetric_pattern_is_still_right():
    """A straight-through part makes the second derivative unsymmetric: star must not be used for it."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g.flip(0)

    def f(x: Tensor) -> Tensor:
        return (Half.apply(x) * x**2).sum()

    x = randn(5) * 3
    want = truth(f, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PullbackWarning)
        for strategy in ["auto", *SPARSE]:
            try:
                found = pb.hessian(f, x, strategy=strategy).sparse().to_dense()
            except PullbackError:
                assert strategy != "auto"
                continue
            torch.testing.assert_close(found, want, msg=strategy)


def test_errors():
    x = randn(3)
    for f in (lambda x: x * 2, lambda x: torch.stack([x, x]), lambda x: x[:0]):
        with pytest.raises(ValueMismatch, match="one real number"):
            pb.hessian(f, x)
    with pytest.raises(ValueMismatch, match="one real number"):
        pb.hessian(lambda x: torch.complex(x, x).sum(), x)
    for f in (lambda x: (x.sum(), x.sum()), lambda x: {"loss": x.sum()}, lambda x: 3.0):
        with pytest.raises(ArgumentError):
            pb.hessian(f, x)
    with pytest.raises(ArgumentError, match="not a function"):
        pb.hessian(x, x)
    with pytest.raises(StrategyError):
        pb.hessian(rosenbrock, x, strategy="waist").sparse()
    with pytest.raises(ValueMismatch):
        pb.hessian(rosenbrock, x, strategy="magic")


def test_an_input_that_a_gradient_does_not_depend_on():
    """Then the part of the Hessian that is no zero is not square."""
    a, b = torch.rand(4, dtype=torch.float64) * 5, torch.rand(4, dtype=torch.float64) + 0.5
    assert pb.hessian(lambda x: x[0].fmod(x[1]).sum(), (a, b)).sparse().to_dense().count_nonzero() == 0
    H = pb.hessian(lambda x: x[0].fmod(x[1]).sum() + x[1].prod(), (a, b))
    want = H.matrix()
    torch.testing.assert_close(H.sparse().to_dense(), want)
    torch.testing.assert_close(want[4:, 4:], torch.autograd.functional.hessian(torch.prod, b))
