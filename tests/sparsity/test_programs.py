"""Hypothesis: random programs over all families of rules; sparse equals dense, in every strategy that bids."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import pullback as pb
from pullback.errors import GuardError, PullbackWarning, StrategyError
from pullback.strategies.base import STRATEGIES

from .oracle import rows_at

EXAMPLES = int(os.environ.get("PULLBACK_EXAMPLES", 500 if os.environ.get("PULLBACK_SWEEP") == "full" else 12))
SPARSE = [name for name, each in STRATEGIES.all().items() if "sparse" in each.gives]
random_programs = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)

# Every operation takes matrices of HEIGHT x WIDTH and gives one, so that any of them may follow any other.
HEIGHT, WIDTH = 3, 4
Operation = Callable[[Tensor, Tensor], Tensor]


def written(change: Callable[[Tensor, Tensor], Any]) -> Operation:
    """An operation that writes on a copy of its first operand."""

    def run(a: Tensor, b: Tensor) -> Tensor:
        copy = a.clone()
        change(copy, b)
        return copy

    return run


def fit(a: Tensor) -> Tensor:
    """A matrix of any size cut, or repeated, to the size that all have."""
    flat = a.reshape(-1)
    if flat.numel() < HEIGHT * WIDTH:
        flat = flat.repeat(-(-HEIGHT * WIDTH // flat.numel()))
    return flat[: HEIGHT * WIDTH].reshape(HEIGHT, WIDTH)


class Reversal(torch.autograd.Function):
    """The identity, whose backward turns the gradient round and over."""

    @staticmethod
    def forward(ctx, a):
        return a.clone()

    @staticmethod
    def backward(ctx, g):
        return -g.flip(0)


class StraightThrough(torch.autograd.Function):
    """Rounding, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, a):
        return a.round()

    @staticmethod
    def backward(ctx, g):
        return g


KERNEL = torch.tensor([[[[0.5, 0.0, -1.0], [0.0, 2.0, 0.3], [0.1, 0.0, 0.7]]]], dtype=torch.float64)
BANDED = torch.eye(WIDTH, dtype=torch.float64) + torch.diag(torch.ones(WIDTH - 1, dtype=torch.float64), 1)
MASK = torch.tensor([[True, False, True, False], [False, True, True, False], [True, True, False, False]])
ROWS, COLUMNS = torch.tensor([2, 0, 0]), torch.tensor([3, 1, 1, 0])


def unseen(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        c = b.flip(1).sin()
    return a * c


def shifted(a: Tensor, b: Tensor) -> Tensor:
    for k in range(a.shape[0]):
        if k % 2:
            a = a + b.roll(k, 1) * k
    return a


OPERATIONS: dict[str, Operation] = {
    # pointwise
    "sin": lambda a, b: a.sin(),
    "tanh of a product": lambda a, b: torch.tanh(a * b),
    "square": lambda a, b: a.square() - b,
    "quotient": lambda a, b: a / (1 + b.square()),
    "sigmoid": lambda a, b: a.sigmoid(),
    "pow": lambda a, b: a**3 * 0.1,
    "times a constant mask": lambda a, b: a * MASK,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    # views and movement
    "transpose": lambda a, b: a.mT.reshape(HEIGHT, WIDTH),
    "flip": lambda a, b: a.flip(1),
    "roll": lambda a, b: a.roll(1, 0) + b.roll(-1, 1),
    "permuted view": lambda a, b: a.reshape(3, 2, 2).permute(0, 2, 1).reshape(HEIGHT, WIDTH),
    "strided": lambda a, b: fit(a[:, ::2]),
    "expand": lambda a, b: a[:1].expand(HEIGHT, WIDTH),
    "repeat": lambda a, b: fit(a[:, :2].repeat(1, 2)),
    "cat": lambda a, b: torch.cat([a[:1], b[1:]], 0),
    "stack": lambda a, b: torch.stack([a[:, 0], b[:, 1], a[:, 3], b[:, 0]], 1),
    "pad": lambda a, b: F.pad(a[:, 1:], (0, 1)),
    "pad, reflect": lambda a, b: F.pad(a[None, :, 1:3], (1, 1), mode="reflect")[0],
    "pad, circular": lambda a, b: F.pad(a[None, :, 1:], (1, 0), mode="circular")[0],
    "diagonal": lambda a, b: fit(torch.diag_embed(a.diagonal())),
    "triangle": lambda a, b: a.tril() + b.triu(1),
    "unfold": lambda a, b: a.unfold(1, 2, 1).sum(-1).repeat(1, 2)[:, :WIDTH],
    "as_strided": lambda a, b: a.contiguous().as_strided((HEIGHT, WIDTH), (2, 1), 1),
    # gathers and scatters
    "rows": lambda a, b: a[ROWS],
    "columns": lambda a, b: a[:, COLUMNS],
    "points": lambda a, b: fit(a[ROWS[:2], COLUMNS[:2]]),
    "gather": lambda a, b: a.gather(1, COLUMNS.expand(HEIGHT, WIDTH)),
    "gather by sorting": lambda a, b: a.gather(1, b.argsort(1)),
    "take_along": lambda a, b: a.take_along_dim(b.argmax(1, keepdim=True), 1).expand(HEIGHT, WIDTH),
    "index_add": lambda a, b: a.index_add(0, ROWS, b),
    "scatter_add": lambda a, b: a.scatter_add(1, COLUMNS.expand(HEIGHT, WIDTH), b),
    "scatter": lambda a, b: a.scatter(1, COLUMNS[:2].expand(HEIGHT, 2), b[:, :2]),
    "index_put": lambda a, b: a.index_put((ROWS[:2], COLUMNS[:2]), b[0, :2]),
    "index_put, accumulate": lambda a, b: a.index_put((ROWS, COLUMNS[:3]), b[0, :3], accumulate=True),
    # reductions and scans
    "sum": lambda a, b: a.sum(1, keepdim=True) + b,
    "sum of many": lambda a, b: a.expand(256, HEIGHT, WIDTH).sum(0) / 256,
    "mean": lambda a, b: a - a.mean(0),
    "prod": lambda a, b: a.prod(1, keepdim=True) * b,
    "amax": lambda a, b: a.amax(1, keepdim=True) - b,
    "norm": lambda a, b: a / (1 + a.norm(dim=1, keepdim=True)),
    "var": lambda a, b: a.var(0) + b,
    "logsumexp": lambda a, b: a.logsumexp(0) * b,
    "softmax": lambda a, b: a.softmax(1),
    "log_softmax": lambda a, b: a.log_softmax(0),
    "layer_norm": lambda a, b: F.layer_norm(a, (WIDTH,)),
    "cumsum": lambda a, b: a.cumsum(1),
    "cumprod": lambda a, b: (a * 0.5).cumprod(0),
    "sort": lambda a, b: a.sort(1).values,
    "topk": lambda a, b: fit(a.topk(2, 1).values),
    # contractions
    "matmul by a constant": lambda a, b: a @ BANDED,
    "matmul": lambda a, b: a @ b.mT @ a * 0.1,
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b) @ a * 0.1,
    "outer": lambda a, b: torch.outer(a[:, 0], b[0]),
    "linear": lambda a, b: F.linear(a, BANDED, b[0]),
    "conv": lambda a, b: F.conv2d(a[None, None], KERNEL, padding=1)[0, 0],
    "conv, dilated": lambda a, b: F.conv2d(a[None, None], KERNEL, padding=2, dilation=2)[0, 0],
    "conv of its own": lambda a, b: F.conv1d(a[None], b[:, None, :3], padding=1, groups=HEIGHT)[0],
    "conv_transpose": lambda a, b: fit(F.conv_transpose2d(a[None, None], KERNEL, stride=2, padding=1)),
    "avg_pool": lambda a, b: fit(F.avg_pool2d(a[None, None], 2)),
    "max_pool": lambda a, b: fit(F.max_pool2d(a[None, None], 2, 1)),
    # selections
    "where": lambda a, b: torch.where(a > 0, a.sin(), b),
    "where of a constant": lambda a, b: torch.where(MASK, a, b),
    "where, NaN untaken": lambda a, b: torch.where(b > 0, b.clamp(min=1e-3).log(), a),
    "relu": lambda a, b: a.relu() - b,
    "clamp": lambda a, b: a.clamp(-0.5, 0.5),
    "maximum": lambda a, b: torch.maximum(a, b),
    "abs": lambda a, b: a.abs(),
    "masked_fill": lambda a, b: a.masked_fill(MASK, 0.5),
    # in place
    "mul_": written(lambda y, b: y.mul_(b)),
    "copy_ to a row": written(lambda y, b: y[1].copy_(b[2])),
    "copy_ of a constant": written(lambda y, b: y[:, 1].copy_(torch.ones(HEIGHT))),
    "write through a transposed view": written(lambda y, b: y.T[2].add_(b[:, 0])),
    "write through a flat view": written(lambda y, b: y.view(-1)[3:7].mul_(b.reshape(-1)[:4])),
    "write on itself": written(lambda y, b: y[1:].add_(y[:-1].clone())),
    "zero_": written(lambda y, b: y[0].zero_()),
    "diagonal.copy_": written(lambda y, b: y.diagonal().copy_(b[:, 0])),
    "index_put_": written(lambda y, b: y.index_put_((ROWS[:2],), b[:2])),
    "masked write": written(lambda y, b: y.__setitem__(MASK, b[MASK] * 2)),
    "index_fill_": written(lambda y, b: y.index_fill_(1, COLUMNS[:1], 0.0)),
    "addcmul_": written(lambda y, b: y.addcmul_(b, b.flip(0))),
    # what autograd does not see, or sees otherwise
    "detach": lambda a, b: a * b.detach(),
    "no_grad": unseen,
    "reversal": lambda a, b: Reversal.apply(a) + b,
    "straight-through": lambda a, b: StraightThrough.apply(a * 2),
    "to integers": lambda a, b: a + b.round().long(),
    # control flow on shapes, and linear algebra
    "loop": shifted,
    "branch on a shape": lambda a, b: a.roll(1, 1) if b.shape[0] > 2 else b,
    "solve": lambda a, b: torch.linalg.solve(torch.eye(HEIGHT) + 0.1 * a @ a.mT, b),
    "fft": lambda a, b: torch.fft.fft(a, dim=1).real,
    "complex": lambda a, b: torch.complex(a, b).conj().mul(1j).real,
    "double backward": lambda a, b: torch.func.grad(lambda z: (z**2 * z.roll(1, 1)).sum())(a),
    "vmap": lambda a, b: torch.func.vmap(lambda u, v: u * v.flip(0))(a, b),
}

# Their course depends on numbers, or they are not twice differentiable as autograd sees them.
NOT_TWICE = {"reversal", "straight-through", "no_grad", "detach"}

steps = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 3), st.integers(0, 3))
programs = st.lists(steps, min_size=1, max_size=5)


def run(program: list[tuple[str, int, int]], x: Tensor) -> Tensor:
    """Each step takes two of the matrices made so far, the latest first; the last is cut to something odd."""
    pool = [x]
    for name, first, second in program:
        pool.append(OPERATIONS[name](pool[-1 - first % len(pool)], pool[-1 - second % len(pool)]))
    return pool[-1]


def function(program: list[tuple[str, int, int]]) -> Callable[[Tensor], Tensor]:
    return lambda x: run(program, x)


def at(seed: int) -> Tensor:
    """A point, away from zero."""
    x = torch.randn(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x + 0.1 * x.sign()


def close(found: Tensor, truth: Any, what: str) -> None:
    truth = torch.as_tensor(truth)
    finite = truth.isfinite()
    size = float(truth[finite].abs().max()) if finite.any() else 1.0
    scale = max(size, 1.0)
    torch.testing.assert_close(
        found.detach()[finite] / scale, truth[finite] / scale, rtol=1e-6, atol=1e-6, msg=lambda text: f"{what}: {text}"
    )


def covers(pattern: pb.Pattern, truth: np.ndarray, what: str) -> None:
    there = np.asarray(pattern.to_scipy().todense())
    lacking = np.argwhere((truth != 0) & np.isfinite(truth) & ~there)
    assert not len(lacking), f"{what} lacks {lacking[:6].tolist()}"


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Where forward mode is not what reverse mode is, Pullback says so and takes the other: that is no fault."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*forward", PullbackWarning)
        yield


@random_programs
@given(programs, st.integers(0, 2**16))
def test_sparse_is_dense_in_every_strategy(program, seed):
    f, x = function(program), at(seed)
    truth = rows_at(f, x, seed=0)
    with unwarned():
        J = pb.jacobian(f, x)
        close(J.matrix(), truth, "dense")
        close(J.sparse().to_dense(), truth, f"auto ({J.plan().chosen})")
        covers(J.pattern, truth, "the pattern")
        covers(J.pattern, rows_at(f, at(seed + 1), seed=0), "the pattern, elsewhere,")
        here = pb.jacobian(f, x, local=True)
        covers(here.pattern, truth, "the local pattern")
        assert here.pattern.issubset(J.pattern)
        close(here.sparse().to_dense(), truth, "local")
        for name in SPARSE:
            try:
                close(pb.jacobian(f, x, strategy=name).sparse().to_dense(), truth, name)
            except StrategyError:
                continue


@random_programs
@given(programs, st.integers(0, 2**16))
def test_prepared_elsewhere(program, seed):
    f = function(program)
    with unwarned():
        prepared = pb.prepare(f, at(seed), verify=False)  # which would hide what is wrong
        for other in (seed, seed + 1, seed + 2):
            truth = rows_at(f, at(other), seed=0)
            covers(prepared.pattern, truth, "the prepared pattern")
            found = prepared(at(other)).sparse()
            close(found.to_dense(), truth, f"prepared, at point {other - seed}")
        # What was found at another point is forgotten there, and nothing of it is left in the results.
        close(prepared(at(seed)).sparse().to_dense(), rows_at(f, at(seed), seed=0), "prepared, back again")


def above_noise(truth: Tensor) -> np.ndarray:
    """A Hessian without entries that are zero in exact arithmetic: of products torch computes some by a difference.

    Where a program is recorded, torch takes a formula that gives them as exact zeros.
    """
    size = truth.abs()
    return torch.where(size > 1e-13 * size.max(), truth, 0.0).numpy()


@random_programs
@given(programs, st.integers(0, 2**16))
@example([("cumprod", 0, 0)], 0)
def test_hessians(program, seed):
    program = [step for step in program if step[0] not in NOT_TWICE]
    weights = at(7)

    def f(x: Tensor) -> Tensor:
        return (run(program, x) * weights).sum() + (x[0, 0] * x[1, 1])

    x = at(seed)
    truth = torch.autograd.functional.hessian(f, x).reshape(x.numel(), x.numel())
    with unwarned():
        H = pb.hessian(f, x)
        found = H.sparse().to_dense()
        close(found, truth, f"Hessian ({H.plan().chosen})")
        close(found, found.T, "its transpose")
        covers(H.pattern, above_noise(truth), "the Hessian's pattern")
        for name in SPARSE:
            try:
                close(pb.hessian(f, x, strategy=name).sparse().to_dense(), truth, f"Hessian, {name}")
            except StrategyError:
                continue
        other = at(seed + 1)
        truth = torch.autograd.functional.hessian(f, other).reshape(x.numel(), x.numel())
        covers(H.pattern, above_noise(truth), "the Hessian's pattern, elsewhere,")
        close(pb.prepare(f, x, of="hessian", verify=False)(other).sparse().to_dense(), truth, "prepared Hessian")


@settings(max_examples=max(EXAMPLES // 2, 10), deadline=None, database=None)
@given(programs, programs, st.integers(0, 2**16))
@example([("sin", 0, 0)], [("roll", 0, 0)], 0)
def test_branches_are_taken_or_refused(one, other, seed):
    """Which of two programs runs depends on a number: a prepared Jacobian is right, or refuses."""

    def f(x: Tensor) -> Tensor:
        return run(one, x) if float(x.detach().sum()) > 0 else run(other, x)

    x = at(seed)
    with unwarned():
        for point in (x, -x):
            truth = rows_at(f, point, seed=0)
            J = pb.jacobian(f, point)
            close(J.sparse().to_dense(), truth, "auto")
            covers(J.pattern, truth, "the pattern")
        prepared = pb.prepare(f, x, verify=False)
        close(prepared(x).sparse().to_dense(), rows_at(f, x, seed=0), "prepared")
        try:
            found = prepared(-x).sparse().to_dense()
        except GuardError:
            return
        close(found, rows_at(f, -x, seed=0), "prepared, not refused")


def test_every_operation_alone():
    """Each operation of the grammar runs and is seen; one that raised would test nothing."""
    x = at(3)
    with unwarned():
        for name in OPERATIONS:
            f = function([("sin", 0, 0), (name, 0, 1)])
            truth = rows_at(f, x, seed=0)
            assert truth.any(), name
            J = pb.jacobian(f, x)
            close(J.sparse().to_dense(), truth, name)
            covers(J.pattern, truth, name)
