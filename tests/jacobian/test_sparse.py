"""J.sparse(), J.pattern and the plan of sparse Jacobians: layouts, leaves, options, counts of passes, explanations."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pullback as pb
from pullback.errors import (
    ArgumentError,
    GraphError,
    MemoryLimitError,
    PullbackError,
    PullbackWarning,
    StrategyError,
    ValueMismatch,
)
from pullback.strategies.base import STRATEGIES
from pullback.testing import scenarios
from tests.conftest import DEVICE

SCENARIOS = scenarios(torch.float64, DEVICE)
SPARSE = [name for name, each in STRATEGIES.all().items() if "sparse" in each.gives]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(found: Any, expected: Any, **options: Any) -> None:
    torch.testing.assert_close(found.to_dense(), expected, **options)


def product(x: Tensor) -> Tensor:
    return x[1:] * x[:-1]


def chain(x: Tensor) -> Tensor:
    doubled = x[1:] * 2
    return doubled * x[:-1].sin()


# --- every strategy, every scenario -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
@pytest.mark.parametrize("strategy", ["auto", *SPARSE])
def test_equals_the_closed_form(scenario, strategy):
    J = pb.jacobian(scenario.f, *scenario.args, strategy=strategy)
    try:
        sparse = J.sparse()
    except StrategyError:
        assert strategy != "auto"
        return
    close(sparse, scenario.matrix)
    assert sparse.layout == torch.sparse_csr
    assert not sparse.requires_grad
    plan = J.plan()
    assert plan.want == "sparse"
    if strategy != "auto":
        assert plan.chosen == strategy
    assert sum(plan.chunks) == plan.passes
    close(J.sparse(), scenario.matrix)


@pytest.mark.parametrize("strategy", SPARSE)
def test_a_dense_matrix_by_the_strategies_that_know_the_zeros(strategy):
    x = randn(600)
    try:
        J = pb.jacobian(product, x, strategy=strategy)
        matrix = J.matrix()
    except StrategyError:
        assert strategy in {"bidirectional", "star", "acyclic", "waist"}
        return
    torch.testing.assert_close(matrix, _bands(x))
    assert J.plan().passes < 10


def _bands(x: Tensor) -> Tensor:
    matrix = torch.zeros(len(x) - 1, len(x), dtype=x.dtype)
    index = torch.arange(len(x) - 1)
    matrix[index, index] = x[1:]
    matrix[index, index + 1] = x[:-1]
    return matrix


def test_auto_takes_the_zeros_for_a_large_dense_matrix():
    J = pb.jacobian(product, randn(600))
    torch.testing.assert_close(J.matrix(), _bands(randn(600)))
    assert J.plan().passes <= 3


# --- layouts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("csr", torch.sparse_csr),
        ("csc", torch.sparse_csc),
        ("coo", torch.sparse_coo),
        ("bsr", torch.sparse_bsr),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_layouts(layout, kind, dtype):
    x = randn(6, dtype=dtype)
    J = pb.jacobian(product, x)
    found = J.sparse(layout)
    assert found.layout is kind
    assert found.shape == J.shape == (5, 6)
    assert found.dtype == dtype
    assert found.device == x.device
    close(found, _bands(x))
    if layout == "coo":
        assert found.is_coalesced()
        assert found.indices().dtype == torch.int64
        torch.sparse_coo_tensor(found.indices(), found.values(), found.shape, check_invariants=True)
    elif layout in {"csr", "csc"}:
        assert found.values().shape == (10,)
        with torch.sparse.check_sparse_tensor_invariants():
            make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
            indices = (
                (found.crow_indices(), found.col_indices())
                if layout == "csr"
                else (found.ccol_indices(), found.row_indices())
            )
            make(*indices, found.values(), found.shape)


def test_scipy():
    x = randn(6)
    found = pb.jacobian(product, x).sparse("scipy")
    assert isinstance(found, scipy.sparse.csr_array)
    assert found.has_sorted_indices
    assert found.has_canonical_format
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.toarray(), _bands(x).numpy())
    assert pb.jacobian(product, randn(6, dtype=torch.float32)).sparse("scipy").dtype == np.float32


def test_scipy_of_a_dtype_that_numpy_lacks():
    x = randn(6, dtype=torch.bfloat16)
    try:
        found = pb.jacobian(product, x).sparse("scipy")
    except PullbackError as error:
        assert "bfloat16" in str(error)  # noqa: PT017
        return
    np.testing.assert_allclose(found.toarray(), _bands(x).float().numpy(), rtol=1e-2)


def test_blocks_are_found():
    weights = randn(3, 2, 2)

    def f(x: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", weights, x.reshape(3, 2)).tanh().reshape(-1)

    x = randn(6)
    want = pb.jacobian(f, x, strategy="rows").matrix()
    found = pb.jacobian(f, x).sparse("bsr")
    assert found.values().shape == (3, 2, 2)
    close(found, want)
    assert pb.jacobian(f, x).sparse("bsr", blocksize=(1, 2)).values().shape == (6, 1, 2)
    close(pb.jacobian(f, x).sparse("bsr", blocksize=(6, 6)), want)


def test_blocks_that_do_not_fit():
    J = pb.jacobian(product, randn(6))
    for blocksize in ((0, 1), (2,), 2, "2x2", (1.0, 1.0), (-1, 1), (True, 1.5)):
        with pytest.raises(ArgumentError, match="blocksize"):
            J.sparse("bsr", blocksize=blocksize)
    with pytest.raises(ArgumentError, match="blocksize"):
        J.sparse("csr", blocksize=(1, 1))
    with pytest.raises(PullbackError):
        J.sparse("bsr", blocksize=(2, 4))


def test_no_such_layout():
    for layout in ("dense", "CSR", "", None, torch.sparse_csr):
        with pytest.raises((ValueMismatch, ArgumentError), match="layout"):
            pb.jacobian(product, randn(3)).sparse(layout)


def test_a_zero_at_this_point_is_stored():
    x = torch.tensor([0.0, 1.0, 0.0])
    sparse = pb.jacobian(product, x).sparse()
    assert sparse.values().numel() == 4
    assert pb.jacobian(product, x).sparse("coo").values().numel() == 4
    assert pb.jacobian(product, x).sparse("scipy").nnz == 4
    assert pb.jacobian(product, x).sparse("csc").values().numel() == 4


def test_results_do_not_share_memory():
    for f in (product, lambda x: x.roll(1) - 2 * x, lambda x: x, lambda x: x.sum()):
        x = randn(5)
        J = pb.jacobian(f, x)
        want = pb.jacobian(f, x, strategy="rows").matrix()
        for layout in ("csr", "csc", "coo", "bsr"):
            found = J.sparse(layout)
            values = found._values() if layout == "coo" else found.values()
            values.fill_(7.0)
            indices = [found._indices()] if layout == "coo" else []
            if layout in {"csr", "bsr"}:
                indices = [found.crow_indices(), found.col_indices()]
            for each in indices:
                each.zero_()
        found = J.sparse("scipy")
        found.data[:], found.indices[:], found.indptr[:] = 7.0, 0, 0
        close(J.sparse(), want)
        found = J.pattern.to_scipy()
        found.indices[:] = 0
        assert J.pattern == pb.jacobian(f, x).pattern


# --- leaves and options -------------------------------------------------------------------------------------------


def test_several_leaves():
    x = {"a": randn(3), "b": [randn(2, 2, seed=1), torch.arange(2)]}

    def f(x: Any) -> Any:
        return x["a"] ** 2, {"p": x["b"][0] @ x["b"][0], "n": x["b"][1]}, x["a"].sum() * x["b"][0][0, 0]

    J = pb.jacobian(f, x)
    assert J.shape == (3 + 2 + 4 + 1, 7)
    close(J.sparse(), pb.jacobian(f, x, strategy="rows").matrix())
    rows, columns = J.pattern.coordinates()
    # In the order of the outputs' leaves: 3 squares, 2 integers, 4 products, 1 number.
    order = [leaf.name for leaf in J.outputs.leaves]
    assert len(order) == 4
    n = next(leaf for leaf in J.outputs.leaves if leaf.shape == (2,))
    assert not set(range(n.offset, n.offset + 2)) & set(rows.tolist())
    assert set(columns.tolist()) == set(range(7))


def test_wrt_and_has_aux():
    def f(x: Tensor, y: Tensor) -> Any:
        return x * y.flip(0), {"aux": x.sum()}

    x, y = randn(3), randn(3, seed=1)
    for wrt in (0, 1, (0, 1), (1, 0), -1):
        J = pb.jacobian(f, x, y, wrt=wrt, has_aux=True)
        close(J.sparse(), pb.jacobian(f, x, y, wrt=wrt, has_aux=True, strategy="rows").matrix())
        assert torch.equal(J.aux["aux"], x.sum())


def test_parameters_by_name():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), randn(2, 3)
    for wrt in ("parameters", ("0.weight", "2.bias"), "2.weight"):
        J = pb.jacobian(net, x, wrt=wrt)
        close(J.sparse(), pb.jacobian(net, x, wrt=wrt, strategy="rows").matrix())
    J = pb.jacobian(net, x, wrt="2.weight")
    assert J.pattern.nnz == 4 * 4, "an output depends on its own row of the weight"
    assert all(parameter.grad is None for parameter in net.parameters())
    assert "0.weight" in pb.jacobian(net, x, wrt="parameters").pattern.explain(0, 0)


def test_jacobian_of():
    x = randn(5).requires_grad_()
    y = x[1:] * x[:-1].sin()
    z = torch.relu(y)
    J = pb.jacobian_of(z, x)
    want = torch.stack([torch.autograd.grad(z[k], x, retain_graph=True)[0] for k in range(4)])
    close(J.sparse(), want)
    assert J.pattern.scope == "local"
    close(pb.jacobian_of([y, z], [x, y]).sparse(), pb.jacobian_of([y, z], [x, y], strategy="rows").matrix())
    z.sum().backward()
    torch.testing.assert_close(x.grad, want.sum(0))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_inside_a_transform():
    """No program is seen there: numbers that are right, or an error that says so."""

    def f(z: Tensor) -> Tensor:
        return pb.jacobian(product, z).sparse().to_dense()

    x = randn(2, 4)
    want = torch.stack([_bands(each) for each in x])
    try:
        found = torch.func.vmap(f)(x)
    except (PullbackError, RuntimeError) as error:
        assert "transform" in str(error) or "vmap" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, want)
    for transform in (torch.func.grad, torch.func.jacrev):
        try:
            found = transform(lambda z: f(z).square().sum())(x[0])
        except (PullbackError, RuntimeError):
            continue
        torch.testing.assert_close(found, torch.func.grad(lambda z: (z[1:] ** 2 + z[:-1] ** 2).sum())(x[0]))


def test_a_pattern_inside_a_transform_says_why_not():
    def f(z: Tensor) -> Tensor:
        pb.jacobian(product, z).pattern  # noqa: B018
        return z

    with pytest.raises(StrategyError, match="transform"):
        torch.func.vmap(f)(randn(2, 4))


def test_create_graph():
    x = randn(5).requires_grad_()
    for strategy in ["auto", *SPARSE]:
        try:
            sparse = pb.jacobian(product, x, create_graph=True, strategy=strategy).sparse()
        except StrategyError:
            continue
        assert sparse.requires_grad, strategy
        weights = torch.arange(1.0, 9.0, dtype=x.dtype)
        (gradient,) = torch.autograd.grad((sparse.values() * weights).sum(), x)
        # Row k holds x[k + 1] and x[k], with weights 2k + 1 and 2k + 2.
        want = torch.tensor([2.0, 1 + 4, 3 + 6, 5 + 8, 7.0], dtype=x.dtype)
        torch.testing.assert_close(gradient, want)


def test_create_graph_by_a_dense_product():
    x = randn(5).requires_grad_()
    dense = pb.jacobian(lambda x: x[1:] ** 2 * x[:-1], x, create_graph=True).sparse().to_dense()
    (gradient,) = torch.autograd.grad(dense.square().sum(), x)
    (want,) = torch.autograd.grad(torch.func.jacrev(lambda x: x[1:] ** 2 * x[:-1])(x).square().sum(), x)
    torch.testing.assert_close(gradient, want)


def test_no_graph_is_kept_without_it():
    w = randn(5).requires_grad_()
    for strategy in ["auto", *SPARSE]:
        try:
            sparse = pb.jacobian(lambda x: (x * w)[1:] * x[:-1], w, strategy=strategy).sparse()
        except StrategyError:
            continue
        assert not sparse.requires_grad, strategy
        assert not sparse.values().requires_grad, strategy


def test_under_no_grad_and_inference_mode():
    x = randn(5)
    with torch.no_grad():
        close(pb.jacobian(product, x).sparse(), _bands(x))
    with torch.inference_mode():
        found = pb.jacobian(product, randn(5)).sparse().to_dense()
    torch.testing.assert_close(found, _bands(x))


def test_memory_limits():
    x = randn(200)
    J = pb.jacobian(product, x, memory=20_000)
    close(J.sparse(), _bands(x))
    with pytest.raises(MemoryLimitError):
        pb.jacobian(product, x, memory=20_000).matrix()
    # Dense in every row: the passes themselves come in chunks.
    J = pb.jacobian(lambda x: x.cumsum(0) * x, x, memory=400_000)
    close(J.sparse(), pb.jacobian(lambda x: x.cumsum(0) * x, x, strategy="rows").matrix())
    with pytest.raises(MemoryLimitError):
        pb.jacobian(lambda x: x.cumsum(0) * x, x, memory=10_000).sparse()


def test_strict_and_verify():
    x = randn(5)
    close(pb.jacobian(product, x, strict=True).sparse(), _bands(x))
    J = pb.jacobian(product, x, verify=False)
    close(J.sparse(), _bands(x))
    assert not J.plan().checked
    J = pb.jacobian(product, x)
    J.sparse()
    assert "plain reverse pass" in J.plan().checked


def test_a_strategy_that_has_no_sparse_form_is_no_hindrance():
    for strategy in ("rows", "columns"):
        close(pb.jacobian(product, randn(5), strategy=strategy).sparse(), _bands(randn(5)))


def test_f_is_evaluated_once():
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return product(x)

    J = pb.jacobian(f, randn(5))
    assert len(calls) == 1
    J.sparse()
    seen = len(calls)
    J.sparse()
    assert J.pattern.nnz == 8
    assert len(calls) == seen, "what was recorded once is not recorded again"


# --- patterns -----------------------------------------------------------------------------------------------------


def test_explain_names_the_lines_of_this_file():
    J = pb.jacobian(chain, randn(4))
    first = inspect.getsourcelines(chain)[1]
    text = J.pattern.explain(1, 2)
    assert text.startswith("entry (1, 2) can be non-zero: output[1] depends on x[2]")
    assert f"test_sparse.py:{first + 1}" in text
    assert "doubled = x[1:] * 2" in text
    assert f"test_sparse.py:{first + 2}" in text
    other = J.pattern.explain(1, 1)
    assert "Sin" in other
    assert "doubled =" not in other, "that line is not on the way from x[1] to output[1]"
    assert J.pattern.explain(1, 3).startswith("entry (1, 3) is zero at every x")
    with pytest.raises(ValueMismatch):
        J.pattern.explain(3, 0)
    assert J.pattern.T.explain(2, 1) == text


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda x: torch.softmax(x, 0), "oftmax"),
        (lambda x: x.cumsum(0), "umsum"),
        (lambda x: x[torch.tensor([1, 0])], "ndex"),
        (lambda x: torch.cat([x, x]), "Cat"),
        (lambda x: torch.eye(4, dtype=x.dtype).flip(0) @ x, "M"),
        (lambda x: F.conv1d(x[None, None], torch.ones(1, 1, 2, dtype=x.dtype)), "onv"),
        (lambda x: (x * 1.0).index_add_(0, torch.tensor([0]), x[1:2]), "ndex"),
    ],
)
def test_explain_all_entries(f, name):
    """Each entry of the pattern has a chain from an output to an input; one of them names the operation."""
    J = pb.jacobian(f, randn(4))
    texts = [J.pattern.explain(int(i), int(j)) for i, j in zip(*J.pattern.coordinates(), strict=True)]
    for text in texts:
        lines = text.splitlines()
        assert "can be non-zero" in lines[0]
        assert len(lines) >= 4, text
        assert lines[-1].startswith("  = output")
    assert any(name in text for text in texts), texts[0]
    assert all("test_sparse.py" in text for text in texts)


def test_explain_several_leaves_by_name():
    x = {"u": randn(2), "v": randn(2)}
    J = pb.jacobian(lambda x: {"s": x["u"] * x["v"].flip(0)}, x)
    text = J.pattern.explain(0, 3)
    assert "v" in text.splitlines()[0]
    assert "['v']" in text or ".v" in text or "v[1]" in text


def test_local_and_global():
    x = torch.tensor([1.0, -1.0, 2.0])
    assert pb.jacobian(torch.relu, x).pattern.nnz == 3
    J = pb.jacobian(torch.relu, x, local=True)
    assert J.pattern.nnz == 2
    assert J.pattern.explain(1, 1) == "entry (1, 1) is zero at this x"
    assert J.sparse().values().tolist() == [1.0, 1.0]


def test_save_and_load(tmp_path):
    path = tmp_path / "pattern.npz"
    J = pb.jacobian(product, randn(5))
    J.pattern.save(path)
    again = pb.jacobian(product, randn(5, seed=1)).pattern
    assert again.fingerprint == J.pattern.fingerprint != ""
    assert pb.Pattern.load(path, fingerprint=again.fingerprint) == J.pattern
    for other in (
        pb.jacobian(product, randn(6)),
        pb.jacobian(lambda x: x[1:] * x[:-1] ** 2, randn(5)),
        pb.jacobian(lambda x: x[1:] * x[:-1].roll(1), randn(5)),
        pb.jacobian(lambda x: x[1:] + x[:-1], randn(5)),
        pb.jacobian(product, randn(5, dtype=torch.float32)),
    ):
        assert other.pattern.fingerprint != again.fingerprint
        with pytest.raises(ValueMismatch, match="different program"):
            pb.Pattern.load(path, fingerprint=other.pattern.fingerprint)


def test_the_fingerprint_sees_constants():
    """Two programs that differ in an index have different patterns, and so must have different fingerprints."""
    one, two = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])
    x = randn(3)
    first, second = pb.jacobian(lambda x: x[one], x).pattern, pb.jacobian(lambda x: x[two], x).pattern
    assert first != second
    assert first.fingerprint != second.fingerprint


def test_numbers_that_leave_torch_have_no_pattern():
    def f(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.sign(x.detach().numpy()))

    J = pb.jacobian(f, randn(3))
    with pytest.raises(StrategyError, match="numpy"):
        J.pattern  # noqa: B018
    close(J.sparse(), torch.diag(randn(3).sign()))
    assert any("numpy" in note for note in J.plan().notes)


def test_closures_are_refused():
    x = randn(3)
    with pytest.raises(GraphError):
        pb.jacobian(lambda _: x * 2, x).sparse()


# --- unknown operations -------------------------------------------------------------------------------------------


@torch.library.custom_op("pullback_sparse::shift", mutates_args=())
def shift(x: Tensor) -> Tensor:
    """What nobody knows to be a shift."""
    return x.roll(1).clone()


@torch.library.custom_op("pullback_sparse::shift_back", mutates_args=())
def shift_back(g: Tensor) -> Tensor:
    return g.roll(-1).clone()


shift.register_autograd(lambda ctx, g: shift_back(g))


def test_an_unknown_operation_is_dense_and_named():
    x = randn(4)
    J = pb.jacobian(lambda x: shift(x[:3] * 2), x)
    with pytest.warns(PullbackWarning, match="no sparsity rule for pullback_sparse::shift_back"):
        sparse = J.sparse()
    close(sparse, torch.eye(4, dtype=x.dtype)[[2, 0, 1]] * 2)
    assert J.pattern.nnz == 9
    assert any("pullback_sparse::shift_back" in note for note in J.plan().notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(pb.jacobian(lambda x: x[:3] * 2, x).sparse(), torch.eye(4, dtype=x.dtype)[:3] * 2)
    with pytest.raises(StrategyError, match="an operation has no sparsity rule") as caught:
        pb.jacobian(lambda x: shift(x[:3] * 2), x, strict=True).sparse()
    assert "pullback_sparse::shift_back (test_sparse.py:" in caught.value.got


def test_a_coloring_to_draw():
    J = pb.jacobian(lambda x: x[1:] * x[:-1], randn(6))
    assert (J.coloring().axis, J.coloring().count) == ("columns", 2)
    assert (J.coloring("rows").axis, J.coloring("rows").count) == ("rows", 2)
    with pytest.raises(ValueMismatch, match="no such axis"):
        J.coloring("diagonals")


# --- plans and counts of passes -----------------------------------------------------------------------------------


def brusselator(size: int) -> Any:
    c = 10.0 * size**2

    def laplacian(w: Tensor) -> Tensor:
        return w.roll(1, 0) + w.roll(-1, 0) + w.roll(1, 1) + w.roll(-1, 1) - 4 * w

    def f(x: Tensor) -> Tensor:
        u, v = x[: size**2].reshape(size, size), x[size**2 :].reshape(size, size)
        du = 1 + u * u * v - 4.4 * u + c * laplacian(u)
        dv = 3.4 * u - u * u * v + c * laplacian(v)
        return torch.cat([du.reshape(-1), dv.reshape(-1)])

    return f


def broyden(x: Tensor) -> Tensor:
    padded = F.pad(x, (1, 1))
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def arrowhead(x: Tensor) -> Tensor:
    return torch.cat([(x * x).sum()[None], x[0] * x[1:] + x[1:] ** 2])


def conv_net(size: int) -> Any:
    weights = [randn(o, i, 3, 3, seed=o) / math.sqrt(9 * i) for i, o in ((3, 8), (8, 8), (8, 1))]

    def f(x: Tensor) -> Tensor:
        y = x.reshape(1, 3, size, size)
        for weight in weights[:2]:
            y = torch.tanh(F.conv2d(y, weight, padding=1))
        return F.conv2d(y, weights[2], padding=1).reshape(-1)

    return f


def bundle_adjustment(cameras: int, points: int, observations: int) -> Any:
    draw = np.random.default_rng(0)
    a = np.concatenate([np.arange(cameras), draw.integers(0, cameras, observations - cameras)])
    b = np.concatenate([np.arange(points), draw.integers(0, points, observations - points)])
    draw.shuffle(a)
    draw.shuffle(b)
    camera, point, seen = (
        torch.from_numpy(a),
        torch.from_numpy(b),
        torch.from_numpy(draw.normal(size=(observations, 2))),
    )

    def f(x: Tensor) -> Tensor:
        c, X = x[: 9 * cameras].reshape(cameras, 9)[camera], x[9 * cameras :].reshape(points, 3)[point]
        w, t, focal, k1, k2 = c[:, :3], c[:, 3:6], c[:, 6:7], c[:, 7:8], c[:, 8:9]
        theta = torch.sqrt((w * w).sum(1, keepdim=True) + 1e-12)
        e, cos, sin = w / theta, theta.cos(), theta.sin()
        P = X * cos + torch.linalg.cross(e, X) * sin + e * (e * X).sum(1, keepdim=True) * (1 - cos) + t
        q = -P[:, :2] / P[:, 2:3]
        r = (q * q).sum(1, keepdim=True)
        return (focal * (1 + k1 * r + k2 * r * r) * q - seen).reshape(-1)

    return f, 9 * cameras + 3 * points


def passes_of(f: Any, x: Tensor, **options: Any) -> int:
    """The passes that J.sparse() takes, after it was held against plain rows."""
    J = pb.jacobian(f, x, **options)
    sparse = J.sparse()
    want = pb.jacobian(f, x, strategy="rows").matrix()
    scale = want.abs().max()
    torch.testing.assert_close(sparse.to_dense() / scale, want / scale)
    assert sum(J.plan().chunks) == J.plan().passes
    return J.plan().passes


def test_passes_of_the_brusselator():
    f, x = brusselator(8), randn(128).abs() + 1
    assert passes_of(f, x) <= 2, "by the cut"
    # The limit that is asked for, on a grid whose size is no multiple of anything.
    assert passes_of(brusselator(7), randn(98), strategy="colored-rows") <= 12
    assert pb.jacobian(f, x).pattern.nnz == 128 * 6


def test_passes_of_the_brusselator_by_coloring_alone():
    x = randn(2 * 32**2)
    J = pb.jacobian(brusselator(32), x, strategy="colored-rows")
    J.sparse()
    assert J.plan().passes <= 10


def test_passes_of_broyden():
    assert passes_of(broyden, randn(40)) <= 3
    assert passes_of(broyden, randn(40), strategy="colored-rows") == 3
    assert passes_of(broyden, randn(40), strategy="colored-columns") == 3


def test_passes_of_the_arrowhead():
    assert passes_of(arrowhead, randn(60)) <= 3
    assert passes_of(arrowhead, randn(60), strategy="bidirectional") <= 3


def test_passes_of_the_conv_net():
    f, x = conv_net(10), randn(300)
    assert passes_of(f, x) <= 49
    assert passes_of(f, x, strategy="colored-rows") == 49
    assert pb.jacobian(f, x).pattern.max_row == 147


def test_passes_of_the_bundle_adjustment():
    f, n = bundle_adjustment(3, 8, 30)
    assert passes_of(f, randn(n) + 0.5) <= 2
    assert passes_of(f, randn(n) + 0.5, strategy="colored-columns") == 12
    assert pb.jacobian(f, randn(n)).pattern.nnz == 12 * 60


def test_passes_of_an_autoencoder():
    """Everything flows through three numbers."""
    down, up = randn(3, 40), randn(40, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        return torch.tanh(up @ torch.tanh(down @ x))

    assert passes_of(f, randn(40)) <= 6
    J = pb.jacobian(f, randn(40), strategy="waist")
    J.sparse()
    assert J.plan().chosen == "waist"


def test_passes_of_what_is_constant():
    J = pb.jacobian(lambda x: x.roll(1) - 2 * x + F.pad(x[1:], (1, 0)), randn(10))
    close(
        J.sparse(), pb.jacobian(lambda x: x.roll(1) - 2 * x + F.pad(x[1:], (1, 0)), randn(10), strategy="rows").matrix()
    )
    assert J.plan().passes <= 1


def test_the_plan_in_words():
    J = pb.jacobian(broyden, randn(30))
    J.sparse()
    text = str(J.plan())
    assert "Jacobian 30 x 30, as sparse" in text
    for name in SPARSE:
        assert name in text
    assert "→" in text
    line = next(line for line in text.splitlines() if "→" in line)
    assert J.plan().chosen in line
    assert "ran:" in text
    assert "verified:" in text
    assert "refused" in text
    assert repr(J.plan()) == f"Plan({J.plan().chosen}, {J.plan().passes} passes, 30 x 30)"
    J = pb.jacobian(broyden, randn(30), strategy="colored-rows")
    J.sparse()
    assert "3 passes for 30 rows (optimal" in " ".join(str(J.plan()).replace("│", " ").split())


def test_a_refused_strategy_says_why():
    with pytest.raises(StrategyError, match="star") as caught:
        pb.jacobian(product, randn(5), strategy="star").sparse()
    assert "symmetric" in str(caught.value)
    with pytest.raises(StrategyError, match="waist"):
        pb.jacobian(product, randn(5), strategy="waist").sparse()


def test_on_the_first_call_it_is_fast():
    """Detection, coloring and the plan of a large stencil: no loop in Python over its elements."""
    import time

    x = randn(200_000)
    began = time.perf_counter()
    J = pb.jacobian(broyden, x)
    sparse = J.sparse()
    assert time.perf_counter() - began < 10
    assert sparse.values().numel() == 3 * 200_000 - 2
    v = randn(200_000, seed=1)
    torch.testing.assert_close(sparse @ v, J @ v)
