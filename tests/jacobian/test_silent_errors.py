"""What PyTorch and other libraries get wrong without a word is right here, and the warning names the operation.

Where the installed torch is still wrong, Pullback must have noticed; where torch has been mended, it must be silent.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import PullbackWarning, VerificationError


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.library.custom_op("pullback_tests::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


cube.register_autograd(
    lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class OldStyle(torch.autograd.Function):
    """A function without ``setup_context``: torch.func refuses it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class StraightThrough(torch.autograd.Function):
    """Its backward is not the derivative of its forward, and its jvp is."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos()


class Shared(nn.Module):
    """One weight used by two layers, and a layer that is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.second = nn.Linear(3, 3, dtype=torch.float64)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(self.first(x).tanh()).sin())


def seeded(kind, *args, **options):
    torch.manual_seed(4)
    return kind(*args, **options, dtype=torch.float64)


def without_grad(x):
    with torch.no_grad():
        factor = x.exp()
    return factor * x


def hooked(x):
    middle = x.exp()
    if middle.requires_grad:
        middle.register_hook(lambda g: 2 * g)
    return middle.sin()


def products(x):
    index = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0]])
    return torch.zeros(2, 3, dtype=x.dtype).scatter_reduce(0, index, x.exp(), "prod", include_self=False)


CENTERS = numbers(5, 3, seed=1)
FACTOR = torch.linalg.cholesky(numbers(4, 4).mT @ numbers(4, 4) + torch.eye(4, dtype=torch.float64))
SHARED = Shared()
RNN = seeded(nn.RNN, 3, 4, num_layers=2)
LSTM = seeded(nn.LSTM, 3, 2)
GRU = seeded(nn.GRU, 3, 2)


@dataclass(frozen=True)
class Case:
    """A function; and what a warning says of its batched reverse passes and of its forward passes."""

    f: Any
    x: torch.Tensor
    batched: str = "nothing"
    forward: str = "nothing"
    twice: bool = True


X = numbers(4, 3)
CASES = {
    "cdist, p = 2": Case(
        lambda x: torch.cdist(x.exp(), CENTERS),
        X,
        batched=r"the batching rule of aten::_cdist_backward \(test_silent_errors.py:\d+\) is wrong",
        twice=False,
    ),
    "cdist, p = 1": Case(
        lambda x: torch.cdist(x.exp(), CENTERS, p=1.0), X, batched="rule of aten::_cdist_backward", twice=False
    ),
    "cdist, p = 3": Case(
        lambda x: torch.cdist(CENTERS, x.exp(), p=3.0), X, batched="rule of aten::_cdist_backward", twice=False
    ),
    "a registered operator": Case(
        lambda x: cube(x.sin()).exp(),
        X,
        forward=r"forward mode gives zeros for pullback_tests::cube \(test_silent_errors.py:\d+\), a reverse pass",
    ),
    "scatter_reduce(prod)": Case(products, X, forward=r"for aten::scatter_reduce \(test_silent_errors.py:\d+\)"),
    "cholesky_inverse after tril": Case(
        lambda x: torch.cholesky_inverse(x.tril()), FACTOR, forward=r"formula of aten::cholesky_inverse \(test_silent"
    ),
    "an RNN": Case(lambda x: RNN(x)[0], X, forward="aten::rnn_tanh"),
    "an LSTM": Case(lambda x: LSTM(x)[0], X, forward="aten::lstm", batched="Lstm"),
    "a GRU": Case(lambda x: GRU(x)[0], X, forward="aten::gru", batched="Gru"),
    "a weight shared and a layer called twice": Case(lambda x: SHARED(x), X),
    "no_grad": Case(without_grad, X, forward=r"torch.no_grad\(\) stops reverse passes at aten::exp \(test_silent"),
    "a hook": Case(
        hooked, X, forward=r"a hook \(test_silent_errors.py:\d+\) changes the gradient that reaches aten::exp"
    ),
    "an old custom function": Case(lambda x: OldStyle.apply(x.sin()).exp(), X),
    "a straight-through function": Case(
        lambda x: StraightThrough.apply(x * x), X, forward=r"the forward formula of StraightThrough \(test_silent"
    ),
    "straight-through by detach": Case(lambda x: x * x + (x.sin() - x * x).detach(), X),
    "a checkpoint": Case(lambda x: checkpoint(lambda x: (x.sin() @ x.mT).exp(), x, use_reentrant=False), X),
}


def rows_of(f, x):
    """J by one plain backward pass for each row."""
    x = x.detach().clone().requires_grad_()
    y = f(x)
    seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    return torch.stack([torch.autograd.grad(y, x, seed, retain_graph=True)[0].reshape(-1) for seed in seeds])


def batched_rows(f, x):
    """The peers' way: the same backward passes all at once, by vmap."""
    x = x.detach().clone().requires_grad_()
    y = f(x)
    seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    rows = torch.func.vmap(lambda seed: torch.autograd.grad(y, x, seed, retain_graph=True)[0])(seeds)
    return rows.reshape(len(rows), -1)


def forward_columns(f, x):
    """The peers' way: one torch.func.jvp for each input element."""
    units = torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    return torch.stack([torch.func.jvp(f, (x,), (unit,))[1].reshape(-1) for unit in units], dim=1)


def is_silently_wrong(peer, f, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = peer(f, x)
        except Exception:  # an error is not silent
            return False
    return not torch.allclose(found, rows_of(f, x), rtol=1e-6)


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


def fresh(f):
    """A function of its own: what was learned of another is not known of it."""
    return lambda x: f(x)


def ask(build):
    """The result, and what Pullback said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = build()
    return found, [str(each.message) for each in caught if issubclass(each.category, PullbackWarning)]


def check_said(said, wrong, text):
    assert bool(said) == wrong, said
    if wrong:
        assert any(re.search(text, each) for each in said), said


def test_rows(case):
    expected = rows_of(case.f, case.x)
    J = pb.jacobian(fresh(case.f), case.x, strategy="rows")
    found, said = ask(J.dense)
    torch.testing.assert_close(found.reshape(expected.shape), expected)
    check_said(said, is_silently_wrong(batched_rows, case.f, case.x), case.batched)
    again, said = ask(lambda: pb.jacobian(fresh(case.f), case.x).rows(range(len(expected))))
    torch.testing.assert_close(again, expected)
    check_said(said, is_silently_wrong(batched_rows, case.f, case.x), case.batched)


def test_columns(case):
    expected = rows_of(case.f, case.x)
    wrong = is_silently_wrong(forward_columns, case.f, case.x)
    n = case.x.numel()
    found, said = ask(lambda: pb.jacobian(fresh(case.f), case.x).columns(range(n)))
    torch.testing.assert_close(found, expected)
    check_said([each for each in said if each.startswith("forward")], wrong, case.forward)
    found, said = ask(lambda: torch.stack([pb.jacobian(fresh(case.f), case.x).columns(j) for j in range(n)], 1))
    torch.testing.assert_close(found, expected)
    assert any("forward" in each for each in said) == wrong


def test_products(case):
    expected = rows_of(case.f, case.x)
    wrong = is_silently_wrong(forward_columns, case.f, case.x)
    v, u = torch.linspace(1, 2, expected.shape[1]).double(), torch.linspace(-1, 2, expected.shape[0]).double()
    J = pb.jacobian(fresh(case.f), case.x)
    pulled, said = ask(lambda: J.T @ u)
    torch.testing.assert_close(pulled, u @ expected)
    assert not said
    pushed, said = ask(lambda: J @ v)
    torch.testing.assert_close(pushed, expected @ v)
    check_said([each for each in said if each.startswith("forward")], wrong, case.forward)


def test_every_way_to_build_it(case):
    expected = rows_of(case.f, case.x)
    for build in (
        lambda J: J.matrix(),
        lambda J: J.dense().reshape(expected.shape),
        lambda J: J.sparse().to_dense(),
        lambda J: J @ torch.eye(case.x.numel(), dtype=case.x.dtype),
        lambda J: (J.T @ torch.eye(len(expected), dtype=case.x.dtype)).mT,
    ):
        found, _ = ask(lambda build=build: build(pb.jacobian(fresh(case.f), case.x)))
        torch.testing.assert_close(found, expected)


def test_strict_raises(case):
    for peer, strategy, text in ((batched_rows, "rows", case.batched), (forward_columns, "columns", case.forward)):
        if is_silently_wrong(peer, case.f, case.x):
            with pytest.raises(VerificationError) as caught:
                ask(pb.jacobian(fresh(case.f), case.x, strategy=strategy, strict=True).matrix)
            assert re.search(text, caught.value.got)


def test_hessians(case):
    if not case.twice:
        pytest.skip("torch has no second derivative here")

    def loss(x):
        return case.f(x).square().sum()

    def gradient(x):
        return torch.autograd.grad(loss(x), x, create_graph=True)[0]

    expected = rows_of(gradient, case.x)
    n = case.x.numel()
    for build in (
        lambda H: H.matrix(),
        lambda H: H.sparse().to_dense(),
        lambda H: H @ torch.eye(n, dtype=case.x.dtype),
        lambda H: torch.stack([H @ unit for unit in torch.eye(n, dtype=case.x.dtype)], dim=1),
    ):
        found, _ = ask(lambda build=build: build(pb.hessian(fresh(loss), case.x)))
        torch.testing.assert_close(found, expected)


def test_a_compiled_function():
    """Forward mode does not see through what torch.compile made; the Jacobian is that of the function all the same."""

    def f(x):
        return (x.sin() @ x.mT).exp()

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    expected = rows_of(f, X)
    for build in (
        lambda J: J.matrix(),
        lambda J: J.columns(range(12)),
        lambda J: J @ torch.eye(12, dtype=torch.float64),
        lambda J: torch.stack([J @ unit for unit in torch.eye(12, dtype=torch.float64)], dim=1),
        lambda J: J.rows(range(16)),
        lambda J: J.sparse().to_dense(),
    ):
        found, said = ask(lambda build=build: build(pb.jacobian(fresh(compiled), X)))
        torch.testing.assert_close(found, expected)
        assert all("torch.compile" in each for each in said)


def test_parameters_that_are_shared():
    """Every use of a weight counts: the engines that work with hooks forget all but one."""
    model, x = SHARED, numbers(4, 3, seed=7)
    parameters = dict(model.named_parameters())
    y = model(x)
    seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    rows = [torch.autograd.grad(y, list(parameters.values()), seed, retain_graph=True) for seed in seeds]
    expected = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("error", PullbackWarning)
        J = pb.jacobian(model, x, wrt="parameters")
        torch.testing.assert_close(J.matrix(), expected)
        torch.testing.assert_close(J.gram(), expected @ expected.mT)
        v = torch.linspace(-1, 1, expected.shape[1], dtype=x.dtype)
        torch.testing.assert_close(J @ v, expected @ v)
        torch.testing.assert_close(J.sparse().to_dense(), expected)
        dense = J.dense()
        for name, parameter in parameters.items():
            alone = [torch.autograd.grad(y, parameter, seed, retain_graph=True)[0] for seed in seeds]
            torch.testing.assert_close(dense[name].reshape(len(alone), *parameter.shape), torch.stack(alone))
        torch.testing.assert_close(torch.block_diag(*pb.jacobian(model, x).blocks()), rows_of(model, x))


def test_hessians_of_shared_parameters():
    model, x = SHARED, numbers(4, 3, seed=7)
    tensors = list(dict(model.named_parameters()).values())
    gradients = torch.autograd.grad(model(x).square().sum(), tensors, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in gradients])
    rows = [torch.autograd.grad(each, tensors, retain_graph=True) for each in flat]
    expected = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).square().sum()

    H = pb.hessian(Loss(), x, wrt="parameters")
    torch.testing.assert_close(H.matrix(), expected)
    torch.testing.assert_close(H @ torch.ones(len(expected), dtype=x.dtype), expected.sum(dim=1))


def normed():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    return model, f


def test_autocast_through_a_layer_norm():
    """Batched passes fail there, one by one they do not; bfloat16 keeps three digits."""
    model, f = normed()
    x = numbers(4, 3).float()
    plain = rows_of(f, x).double()
    exact = rows_of(model.double(), x.double())
    model.float()
    size = exact.abs().max()
    for build in (
        lambda J: J.matrix(),
        lambda J: J.rows(range(8)),
        lambda J: J.columns(range(12)),
        lambda J: J @ torch.eye(12),
        lambda J: J.sparse().to_dense(),
        lambda J: torch.block_diag(*J.blocks()),
    ):
        found, said = ask(lambda build=build: build(pb.jacobian(fresh(f), x)))
        assert not said
        assert (found.double() - exact).abs().max() < 0.02 * size
        assert (found.double() - plain).abs().max() < 0.02 * size
    for strategy in ("rows", "columns"):
        J = pb.jacobian(fresh(f), x, strategy=strategy, strict=True)
        assert (J.matrix().double() - exact).abs().max() < 0.02 * size


def test_the_forward_formula_of_a_layer_norm_has_a_wrong_derivative():
    """A Jacobian may be right and the graph that it carries wrong."""
    norm = nn.LayerNorm(3, dtype=torch.float64)
    x = numbers(2, 3)

    def squares(build):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(build(leaf).square().sum(), leaf)[0]

    def by_rows(leaf):
        y = norm(leaf).reshape(-1)
        return torch.stack([torch.autograd.grad(each, leaf, create_graph=True)[0].reshape(-1) for each in y])

    expected = squares(by_rows)
    step = 1e-6 * torch.eye(6, dtype=torch.float64).reshape(6, 2, 3)
    total = [[by_rows((x + sign * d).requires_grad_()).square().sum() for d in step] for sign in (1, -1)]
    differences = (torch.stack(total[0]) - torch.stack(total[1])) / 2e-6
    torch.testing.assert_close(expected.reshape(-1), differences, rtol=1e-5, atol=1e-6)
    wrong = not torch.allclose(squares(torch.func.jacfwd(norm)), expected)
    for build in (
        lambda J: J.columns(range(6)),
        lambda J: J @ torch.eye(6, dtype=torch.float64),
        lambda J: torch.stack([J @ unit for unit in torch.eye(6, dtype=torch.float64)], dim=1),
    ):
        found, said = ask(
            lambda build=build: squares(lambda leaf: build(pb.jacobian(fresh(norm), leaf, create_graph=True)))
        )
        torch.testing.assert_close(found, expected)
        text = r"in its derivative by x.*: the forward formula of aten::layer_norm \(test_silent_errors.py:\d+\)"
        check_said([each for each in said if each.startswith("forward")], wrong, text)
    for strategy in ("auto", "rows"):
        found, said = ask(
            lambda strategy=strategy: squares(
                lambda leaf: pb.jacobian(fresh(norm), leaf, create_graph=True, strategy=strategy).matrix()
            )
        )
        torch.testing.assert_close(found, expected)
        assert not said


def test_a_reentrant_checkpoint_fails_aloud():
    """torch itself refuses it wherever gradients of given tensors are asked for."""

    def f(x):
        return checkpoint(lambda x: x.sin() @ x.mT, x, use_reentrant=True)

    for build in (lambda J: J.matrix(), lambda J: J @ X, lambda J: J.T @ numbers(4, 4), lambda J: J.columns(0)):
        with pytest.raises(RuntimeError, match="use_reentrant"):
            build(pb.jacobian(fresh(f), X))
