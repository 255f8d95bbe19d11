"""Hypothesis: random structures, shapes, dtypes, layouts and wrt; and random compositions of operators."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback as pb

from .examine import Findings, examine, examine_call, only_pullback_warnings
from .oracle import carries, coarsest, difference, fresh, truth_of_graph

EXAMPLES = 600 if os.environ.get("PULLBACK_SWEEP") == "full" else 80
random_examples = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

DTYPES = [torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128, torch.complex64]


def _sound(found: Findings) -> None:
    assert not found.problems, "\n".join(found.problems)
    assert not found.warned, "\n".join(found.warned)
    assert not found.refused, found.refused


# --- structures --------------------------------------------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype] = DTYPES) -> Tensor:
    """A tensor of up to two dimensions of size 0 to 3, laid out in memory in one of four ways."""
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    layout = draw(st.sampled_from(["contiguous", "transposed", "expanded", "every other"]))
    exact = torch.complex128 if dtype.is_complex else torch.float64

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=exact).to(dtype)

    if layout == "transposed":
        return numbers(*shape[::-1]).permute(tuple(range(len(shape)))[::-1])
    if layout == "expanded" and shape:
        return numbers(1, *shape[1:]).expand(shape)
    if layout == "every other" and shape:
        return numbers(2 * shape[0], *shape[1:])[::2]
    return numbers(*shape)


constants = st.one_of(
    st.integers(-3, 3), st.none(), st.text(max_size=2), st.just(torch.tensor([1, 2])), st.just(torch.tensor(True))
)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Dicts, tuples and lists of leaves, nested."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        ),
        max_leaves=4,
    )


@st.composite
def arguments(draw: st.DrawFn) -> tuple[list[Any], int | tuple[int, ...]]:
    """One to three argument structures and a wrt, with a floating tensor in every one that wrt names."""
    args = draw(st.lists(trees(st.one_of(tensors(), tensors(), constants)), min_size=1, max_size=3))
    able = [index for index, arg in enumerate(args) if any(map(_carries, pytree.tree_leaves(arg)))]
    if not able:
        args.append(draw(tensors()))
        able = [len(args) - 1]
    wrt = draw(st.lists(st.sampled_from(able), min_size=1, max_size=3, unique=True))
    return args, wrt[0] if len(wrt) == 1 and draw(st.booleans()) else tuple(wrt)


def _carries(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and carries(leaf)


def mixture(*args: Any) -> Any:
    """A smooth function of all floating leaves: its structure holds them mixed, and constants, and dead ends."""
    leaves = [leaf for leaf in pytree.tree_leaves(args) if _carries(leaf)]
    exact = [leaf.to(torch.complex128 if leaf.is_complex() else torch.float64) for leaf in leaves]
    total = torch.zeros((), dtype=torch.float64)
    for leaf in exact:
        size = leaf.abs().square() if leaf.is_complex() else leaf.sin() + leaf
        total = total + size.sum() / max(leaf.numel(), 1)
    mixed = [(one * (1 + total.tanh())).to(leaf.dtype) for one, leaf in zip(exact, leaves, strict=True)]
    return {
        "mixed": tuple(mixed),
        "total": [total, total.detach(), (total > 0)],
        "first": (leaves[0], leaves[-1].reshape(-1)[:2]),
        "count": torch.tensor(len(leaves)),
        "name": "a constant",
    }


@random_examples
@given(arguments())
def test_structures(given_arguments: tuple[list[Any], int | tuple[int, ...]]) -> None:
    """Every strategy and every form of products, for any nesting, shape, dtype, layout and wrt."""
    args, wrt = given_arguments
    chosen = [wrt] if isinstance(wrt, int) else list(wrt)
    points = list(args)
    for index in chosen:
        points[index] = fresh(args[index])
    leaves = [leaf for index in chosen for leaf in pytree.tree_leaves(points[index]) if _carries(leaf)]
    torch.manual_seed(0)
    truth = truth_of_graph(mixture(*points), leaves)
    untouched = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    _sound(examine_call(lambda strategy: pb.jacobian(mixture, *args, wrt=wrt, strategy=strategy), truth, untouched))


@random_examples
@given(arguments())
def test_dense_has_the_structure_of_torch_func(given_arguments: tuple[list[Any], int | tuple[int, ...]]) -> None:
    """The outputs' structure; in each output the inputs'; in each input a tensor shaped output + input."""
    args, wrt = given_arguments
    with only_pullback_warnings():
        J = pb.jacobian(mixture, *args, wrt=wrt)
        dense, matrix = J.dense(), J.matrix()
    inputs = args[wrt] if isinstance(wrt, int) else tuple(args[index] for index in wrt)
    least = coarsest([leaf for leaf in pytree.tree_leaves((inputs, J.value)) if _carries(leaf)])
    for output, row in zip(J.outputs.leaves, J.outputs.flatten(dense), strict=True):
        assert pytree.tree_structure(row, is_leaf=_is_none) == pytree.tree_structure(
            pytree.tree_map(lambda leaf: leaf if _carries(leaf) else None, inputs), is_leaf=_is_none
        )
        for column, block in zip(J.inputs.leaves, J.inputs.flatten(row), strict=True):
            assert block.shape == output.shape + column.shape
            assert block.dtype == column.dtype
            entries = matrix[output.slice, column.slice]
            # Two builds, whose routes may differ with what was measured: equal but for rounding.
            assert not difference(block.reshape(entries.shape).to(matrix.dtype), entries, dtype=least)


def _is_none(leaf: Any) -> bool:
    return leaf is None


# --- compositions ------------------------------------------------------------------------------------------------

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "exp": lambda a: torch.exp(-a.square()),
    "relu": torch.relu,
    "abs": torch.abs,
    "softplus": torch.nn.functional.softplus,
    "reciprocal": lambda a: 1 / (a.square() + 1),
    "cumsum": lambda a: a.cumsum(0),
    "cumprod": lambda a: a.cumprod(-1),
    "softmax": lambda a: a.softmax(-1),
    "logsumexp": lambda a: a.logsumexp(0, keepdim=True),
    "sort": lambda a: a.sort(-1).values,
    "max": lambda a: a.amax(0, keepdim=True) + a,
    "norm": lambda a: a / (1 + a.norm()),
    "sum": lambda a: a.sum(0, keepdim=True),
    "mean": lambda a: a.mean().reshape(1, 1),
    "flip": lambda a: a.flip(0),
    "roll": lambda a: a.roll(1, 0),
    "transpose": lambda a: a.mT,
    "flatten": lambda a: a.reshape(1, -1),
    "first row": lambda a: a[:1],
    "gather rows": lambda a: a[torch.tensor([0, -1, 0])],
    "mask": lambda a: a.masked_fill(torch.ones_like(a, dtype=torch.bool).triu(), 0.5),
    "pad": lambda a: torch.nn.functional.pad(a, (0, 1)),
    "expand": lambda a: a.unsqueeze(0).expand(2, *a.shape).reshape(-1, a.shape[1]),
    "unbind": lambda a: torch.stack(a.unbind(1), 0),
    "where": lambda a: torch.where(a > 0, a.sin(), a.square()),
    "detached half": lambda a: a * a.detach(),
    "branch": lambda a: a.sin() if float(a.detach().sum()) > 0 else a.cos(),
    "in-place": lambda a: a.clone().mul_(a.cos()).add_(1),
    "in-place on a row": lambda a: _write(a, lambda z: z[0].mul_(2)),
    "in-place on a view": lambda a: _write(a, lambda z: z.view(-1)[-1:].copy_(z.view(-1)[:1].clone().sin())),
    "index_put": lambda a: a.index_put((torch.tensor([0]),), a[-1:].cos(), accumulate=True),
    "double backward": lambda a: torch.func.grad(lambda z: z.pow(3).sum())(a),
    "determinant": lambda a: torch.linalg.det(a @ a.mT + torch.eye(a.shape[0], dtype=a.dtype)).reshape(1, 1),
}

BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "outer": lambda a, b: a.reshape(-1, 1)[:3] * b.reshape(1, -1)[:, :3],
    "matmul": lambda a, b: a @ a.mT @ a * b.mean(),
    "scale": lambda a, b: a * b.sum(),
    "cat": lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]).reshape(1, -1)[:, :6],
    "add a number": lambda a, b: a + b[0, 0],
    "maximum": lambda a, b: torch.maximum(a, b[:1, :1]),
    "atan2": lambda a, b: torch.atan2(a, 2 + b[0, 0].square()),
    "einsum": lambda a, b: torch.einsum("ij,kl->il", a, b)[:3, :3],
    "write": lambda a, b: _write(a, lambda z: z[-1].add_(b.sum())),
    "hypot": lambda a, b: torch.hypot(a, 1 + b.mean().abs()),
}


def _write(a: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """A copy that is written on; the copy is contiguous, and an intermediate result."""
    z = (a * 1.0).contiguous()
    change(z)
    return z


programs = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 3), st.none()),
        st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 3), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=6,
)


def run(program: list[tuple[str, int, int | None]], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each step makes a matrix from earlier ones, the latest first; the last two are the outputs."""
    pool = list(x)
    for name, first, second in program:
        a = pool[-1 - first % len(pool)]
        if second is None:
            pool.append(UNARY[name](a))
        else:
            pool.append(BINARY[name](a, pool[-1 - second % len(pool)]))
    return tuple(pool[max(len(x), len(pool) - 2) :])


@random_examples
@given(programs, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**16))
def test_compositions(program: Any, rows: int, columns: int, count: int, seed: int) -> None:
    """J of a random program by every strategy, and its products, against the row-by-row oracle."""
    generator = torch.Generator().manual_seed(seed)
    x = tuple(torch.randn(rows, columns, generator=generator, dtype=torch.float64) for _ in range(count))
    outputs = run(program, x)
    if sum(part.numel() for part in outputs) > 150 or any(part.abs().max() > 1e4 for part in outputs):
        return
    _sound(examine(lambda x: run(program, x), x))


@random_examples
@given(programs, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**16))
def test_compositions_over_a_batch(program: Any, rows: int, columns: int, seed: int) -> None:
    """Under torch.func.vmap f keeps examples apart, and the matrix is that of the blocks."""
    program = [step for step in program if step[0] != "branch"]  # it reads a number
    if not program:
        return
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(10, rows, columns, generator=generator, dtype=torch.float64)
    one = run(program, (x[0],))
    if sum(part.numel() for part in one) > 20 or any(part.abs().max() > 1e4 for part in one):
        return

    def f(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda z: run(program, (z,))[-1])(x)

    found = examine(f, x)
    _sound(found)
    blocks = pb.jacobian(f, x).blocks()
    for index in range(10):
        alone = pb.jacobian(lambda z: run(program, (z,))[-1], x[index], strategy="rows").matrix()
        torch.testing.assert_close(blocks[index], alone)


def test_the_grammar_holds() -> None:
    """Every operator of the grammar runs and is differentiable: an operator that raised would test nothing."""
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    for name in UNARY:
        assert UNARY[name](x).ndim == 2, name
        assert UNARY[name](x).requires_grad, name
    for name in BINARY:
        assert BINARY[name](x, x.sin()).ndim == 2, name
        assert BINARY[name](x, x.sin()).requires_grad, name


def test_the_examples_are_not_all_trivial() -> None:
    """The generator of structures reaches what it promises: several dtypes, empty, expanded and 0-dim tensors."""
    seen: set[str] = set()

    @settings(max_examples=300, database=None, derandomize=True, deadline=None)
    @given(arguments())
    def look(given_arguments: tuple[list[Any], int | tuple[int, ...]]) -> None:
        args, wrt = given_arguments
        seen.add("several wrt" if isinstance(wrt, tuple) and len(wrt) > 1 else "one wrt")
        for leaf in pytree.tree_leaves(args):
            if not isinstance(leaf, Tensor):
                seen.add("constant")
                continue
            seen.add(str(leaf.dtype))
            seen.add("0-dim" if leaf.ndim == 0 else "empty" if not math.prod(leaf.shape) else "ordinary")
            if leaf.ndim and leaf.numel() and 0 in leaf.stride():
                seen.add("expanded")
            if not leaf.is_contiguous():
                seen.add("not contiguous")

    look()
    expected = {str(dtype) for dtype in DTYPES} | {"several wrt", "one wrt", "constant", "torch.int64", "torch.bool"}
    assert expected | {"0-dim", "empty", "ordinary", "expanded", "not contiguous"} <= seen
