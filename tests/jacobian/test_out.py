"""Results written over what is there already: right, once, in any layout; and what will not do is refused untouched."""

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import ArgumentError, PullbackError, StrategyError, ValueMismatch
from pullback.executors.memory import measured
from pullback.strategies.base import STRATEGIES, tiled
from pullback.testing import scenarios

CPU = torch.device("cpu")
SCENARIOS = scenarios(torch.float64)


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def several(tree):
    a, b = tree["a"], tree["b"]
    return {
        "p": torch.sin(a[:, None] * b.flatten()),
        "dead": torch.zeros(3, dtype=a.dtype),
        "q": b.sum() * a,
        "ints": torch.arange(2),
    }


TREE = {"a": random(4), "b": random(2, 3, seed=1), "unused": random(2, seed=2), "text": "constant"}


def torch_rows(f, tree):
    """J by plain reverse passes: the structure of f's value, and for each output one of ``{name: tensor}``."""
    leaves = {name: each.clone().requires_grad_() for name, each in tree.items() if isinstance(each, torch.Tensor)}
    result = {}
    for key, y in f(tree | leaves).items():
        rows = {name: torch.zeros(y.numel(), leaf.numel(), dtype=leaf.dtype) for name, leaf in leaves.items()}
        for i, element in enumerate(y.flatten() if y.requires_grad else []):
            found = torch.autograd.grad(element, list(leaves.values()), retain_graph=True, allow_unused=True)
            for name, grad in zip(leaves, found, strict=True):
                if grad is not None:
                    rows[name][i] = grad.flatten()
        result[key] = {name: rows[name].reshape(y.shape + leaf.shape) for name, leaf in leaves.items()}
    return result


def as_matrix(nested, tree):
    leaves = [name for name in tree if isinstance(tree[name], torch.Tensor)]
    rows = [[parts[name].reshape(-1, tree[name].numel()) for name in leaves] for parts in nested.values()]
    return torch.cat([torch.cat(row, dim=1) for row in rows])


def refill(tree):
    """Fill every tensor of a result with nonsense, in place."""
    for leaf in torch.utils._pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            leaf.fill_(float("nan") if leaf.is_floating_point() or leaf.is_complex() else -1)


def pointers(tree):
    return [leaf.data_ptr() for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
@pytest.mark.parametrize("memory", [None, 3000])
def test_dense_in_the_structure_that_dense_gave(strategy, memory):
    J = pb.jacobian(several, TREE, strategy=strategy, memory=memory)
    out = J.dense()
    before = pointers(out)
    refill(out)
    again = J.dense(out=out)
    assert again is out
    assert pointers(out) == before
    assert out["p"]["text"] is None
    for key, parts in torch_rows(several, TREE).items():
        for name, expected in parts.items():
            torch.testing.assert_close(out[key][name], expected)


@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
@pytest.mark.parametrize("memory", [None, 4000])
@pytest.mark.parametrize("layout", ["rows", "columns", "part", "conj"])
def test_matrix_in_any_layout(strategy, memory, layout):
    J = pb.jacobian(several, TREE, strategy=strategy, memory=memory)
    expected = as_matrix(torch_rows(several, TREE), TREE)
    shape = expected.shape
    out = {
        "rows": lambda: torch.empty(shape, dtype=torch.float64),
        "columns": lambda: torch.empty(shape[::-1], dtype=torch.float64).mT,
        "part": lambda: torch.empty(2 * shape[0], 3 * shape[1], dtype=torch.float64)[::2, 5 : 5 + shape[1]],
        "conj": lambda: torch.empty(shape, dtype=torch.complex128).conj().imag,
    }[layout]()
    refill(out)
    assert J.matrix(out=out) is out
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(J.matrix(), expected)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
@pytest.mark.parametrize("strategy", list(STRATEGIES.all()))
@pytest.mark.parametrize("memory", [None, 80_000])
def test_every_strategy_writes_what_it_builds(scenario, strategy, memory):
    J = pb.jacobian(scenario.f, *scenario.args, strategy=strategy, memory=memory)
    out = torch.full(scenario.matrix.shape, float("nan"), dtype=torch.float64)
    try:
        J.matrix(out=out)
    except StrategyError:
        assert out.isnan().all()
        return
    torch.testing.assert_close(out, scenario.matrix)
    assert J.plan().chosen == strategy
    refill(out)
    across = torch.full(scenario.matrix.shape[::-1], float("nan"), dtype=torch.float64).mT
    torch.testing.assert_close(J.matrix(out=across), scenario.matrix)
    nested = J.dense()
    refill(nested)
    J.dense(out=nested)
    joined = J.outputs.flatten(nested)
    parts = [J.inputs.flatten(each) for each in joined]
    flat = [[part.reshape(row.numel, -1) for part in each] for each, row in zip(parts, J.outputs.leaves, strict=True)]
    torch.testing.assert_close(torch.cat([torch.cat(row, dim=1) for row in flat]), scenario.matrix)


def mixed(tree):
    x, y = tree["x"], tree["y"]
    return {"s": x[1:] * x[:-1], "t": (y * x[:500]).sin(), "u": x.flip(0)}


@pytest.mark.parametrize("strategy", ["factored", "colored-rows", "colored-columns"])
def test_entries_are_spread_over_several_outputs_and_inputs(strategy):
    tree = {"x": random(600), "unused": random(3), "y": random(500, seed=1)}
    J = pb.jacobian(mixed, tree, strategy=strategy)
    expected = torch_rows(mixed, tree)
    out = J.dense()
    refill(out)
    J.dense(out=out)
    assert J.plan().chosen == strategy
    for key, parts in expected.items():
        for name in parts:
            torch.testing.assert_close(out[key][name], parts[name])
    torch.testing.assert_close(J.matrix(), as_matrix(expected, tree))


def test_through_a_waist():
    u, v = random(40, 2), random(2, 30, seed=1)
    J = pb.jacobian(lambda x: torch.tanh(u @ torch.tanh(v @ x)), random(30, seed=2), strategy="waist")
    out = torch.full((40, 30), float("nan"), dtype=torch.float64)
    J.matrix(out=out)
    assert J.plan().chosen == "waist"
    torch.testing.assert_close(out, torch.func.jacrev(J._lin.problem.f)(J._lin.problem.tree))

    def f(x, y):
        z = torch.tanh(v @ (x + y))
        return {"a": torch.tanh(u @ z), "b": torch.outer(z, z)}

    args = random(30, seed=3), random(30, seed=4)
    J = pb.jacobian(f, *args, wrt=(0, 1), strategy="waist")
    out = J.dense()
    refill(out)
    J.dense(out=out)
    assert J.plan().chosen == "waist"
    torch.testing.assert_close(out, torch.func.jacrev(f, argnums=(0, 1))(*args))
    expected = torch.cat([torch.cat([part.reshape(-1, 30) for part in out[key]], dim=1) for key in ("a", "b")])
    torch.testing.assert_close(J.matrix(), expected)


W = random(3, 4, dtype=torch.complex128)
Z = random(4, dtype=torch.complex128, seed=1)


@pytest.mark.parametrize("strategy", ["rows", "columns"])
@pytest.mark.parametrize("conjugated", [True, False])
def test_complex(strategy, conjugated):
    def general(z):
        return (W @ z) ** 2 + z.conj()[:3]

    z = Z.clone().requires_grad_()
    y = general(z)
    expected = torch.stack([torch.autograd.grad(each, z, torch.ones_like(each), retain_graph=True)[0] for each in y])
    for f, holomorphic, rows in ((general, False, expected), (lambda z: (W @ z) ** 2, True, 2 * (W @ Z)[:, None] * W)):
        J = pb.jacobian(f, Z, holomorphic=holomorphic, strategy=strategy)
        out = torch.empty(3, 4, dtype=torch.complex128)
        out = out.conj() if conjugated else out
        refill(out)
        torch.testing.assert_close(J.matrix(out=out), rows)


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_real_and_complex_inputs_together(strategy):
    x = random(3)

    def f(x, z):
        return (x * z[:3] + z.conj()[1:]).exp()

    J = pb.jacobian(f, x, Z, wrt=(0, 1), strategy=strategy)
    a, b = x.clone().requires_grad_(), Z.clone().requires_grad_()
    one = torch.ones((), dtype=torch.complex128)
    rows = [torch.autograd.grad(each, (a, b), one, retain_graph=True) for each in f(a, b)]
    expected = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    out = J.dense()
    refill(out)
    torch.testing.assert_close(J.dense(out=out), expected)
    matrix = torch.full((3, 7), float("nan"), dtype=torch.complex128)
    torch.testing.assert_close(J.matrix(out=matrix), torch.cat([expected[0] + 0j, expected[1]], dim=1))
    torch.testing.assert_close(J.matrix(), matrix)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("strategy", ["rows", "columns", "blocks"])
def test_other_dtypes(dtype, strategy):
    x = random(8, 2).to(dtype)
    out = torch.full((16, 16), float("nan"), dtype=dtype)
    pb.jacobian(torch.sin, x, strategy=strategy).matrix(out=out)
    torch.testing.assert_close(out, x.cos().flatten().diag(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_zero_size_and_scalars(shape):
    x = torch.ones(shape, dtype=torch.float64)
    J = pb.jacobian(lambda x: x * 2, x)
    out = J.dense()
    assert J.dense(out=out) is out
    torch.testing.assert_close(out, torch.full(shape + shape, 2.0, dtype=torch.float64))
    assert J.matrix(out=torch.empty(J.shape, dtype=torch.float64)).shape == J.shape


def test_outputs_without_a_graph_become_zeros():
    out = torch.full((2, 3), float("nan"))
    torch.testing.assert_close(pb.jacobian(lambda x: torch.ones(2), torch.ones(3)).dense(out=out), torch.zeros(2, 3))


@pytest.mark.parametrize("lengths", [1, 2])
@pytest.mark.parametrize("memory", [None, 20_000])
def test_blocks(lengths, memory):
    w, v = random(5, 3), random(3, 2, seed=1)
    x, y = random(30, 3, seed=2), random(30, 3, 2, seed=3)

    def f(x, y=None):
        mixture = torch.tanh(x @ w.T) if y is None else torch.tanh(x @ w.T) * (y * v).sum((1, 2))[:, None]
        return {"a": mixture, "dead": torch.zeros(len(x), 2, dtype=x.dtype), "b": x.prod(1)}

    args = (x, y)[:lengths]
    J = pb.jacobian(f, *args, wrt=tuple(range(lengths)), memory=memory)
    width = 3 if lengths == 1 else 9
    out = torch.full((30, 8, width), float("nan"), dtype=torch.float64)
    assert J.blocks(out=out) is out

    def one(*each):
        found = f(*(part[None] for part in each))
        return torch.cat([part.flatten() for part in found.values()])

    for k in range(30):
        rows = torch.func.jacrev(one, argnums=tuple(range(lengths)))(*(arg[k] for arg in args))
        torch.testing.assert_close(out[k], torch.cat([part.flatten(1) for part in rows], dim=1))
    torch.testing.assert_close(J.blocks(), out)
    assert not J.blocks().isnan().any()
    across = torch.full((8, width, 30), float("nan"), dtype=torch.float64).permute(2, 0, 1)
    torch.testing.assert_close(J.blocks(out=across), out)


def test_blocks_of_examples_that_mix_leave_what_is_given():
    net = nn.BatchNorm1d(3, affine=False).double()
    out = torch.full((20, 3, 3), 7.0, dtype=torch.float64)
    with pytest.raises(StrategyError, match="nothing can build this Jacobian as blocks"):
        pb.jacobian(net, random(20, 3)).blocks(out=out)
    assert (out == 7).all()
    with pytest.raises(StrategyError):
        pb.jacobian(lambda x: x.sum(), random(20, 3)).blocks(out=out)


def test_a_prepared_jacobian_writes_too():
    def f(x):
        return x[1:] * x[:-1]

    prepared = pb.prepare(f, torch.rand(40, dtype=torch.float64))
    at = random(40)
    out = torch.full((39, 40), float("nan"), dtype=torch.float64)
    torch.testing.assert_close(prepared(at).dense(out=out), torch.func.jacrev(f)(at))
    across = torch.full((40, 39), float("nan"), dtype=torch.float64).mT
    torch.testing.assert_close(prepared(at).matrix(out=across), torch.func.jacrev(f)(at))


def test_parameters_of_a_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = random(5, 3)
    J = pb.jacobian(net, x, wrt="parameters")
    out = J.dense()
    refill(out)
    J.dense(out=out)
    expected = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, x))(dict(net.named_parameters()))
    for name, value in expected.items():
        torch.testing.assert_close(out[name], value)
    assert J.matrix().shape == (10, 26)


# Memory


def shallow(x):
    return (x[: len(x) * 3 // 4] * x.sum()).sin()


def deep(m, n):
    w = random(m, n)
    return (lambda x: torch.tanh(w @ x)), random(n, seed=1)


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_nothing_of_the_size_of_j_is_allocated(strategy):
    x = random(400)
    J = pb.jacobian(shallow, x, strategy=strategy, memory=100_000)
    out = torch.empty(300, 400, dtype=torch.float64)
    J.matrix(out=out)  # verified
    again = pb.jacobian(shallow, x, strategy=strategy, memory=100_000)
    _, peak = measured(lambda: again.matrix(out=out), CPU)
    assert peak < 300 * 400 * 8 / 3


def test_several_inputs_and_outputs_are_written_once():
    w, v = random(300, 200), random(300, 150, seed=1)
    args = random(200, seed=2), random(150, seed=3)

    def f(x, y):
        z = torch.tanh(w @ x + v @ y)
        return z[:200], z[100:]

    J = pb.jacobian(f, *args, wrt=(0, 1), strategy="rows", memory="2MiB")
    J.matrix()  # verified
    again = pb.jacobian(f, *args, wrt=(0, 1), strategy="rows", memory="2MiB")
    again._passes = again._passes.within(2**21, most=10)  # few passes at once take little beside J
    size = 400 * 350 * 8
    matrix, peak = measured(again.matrix, CPU)
    assert matrix.is_contiguous()
    assert peak < 1.5 * size
    nested = again.dense()
    _, peak = measured(lambda: again.dense(out=nested), CPU)
    assert peak < 0.5 * size


def test_blocks_on_the_diagonal_are_written_into_place():
    x = random(500, 2)
    J = pb.jacobian(torch.tanh, x)
    out = torch.full((1000, 1000), float("nan"), dtype=torch.float64)
    J.matrix(out=out)
    assert J.plan().chosen == "blocks"
    again = pb.jacobian(J._lin.problem.f, x)
    _, peak = measured(lambda: again.matrix(out=out), CPU)
    assert peak < 1000 * 1000 * 8 / 10
    torch.testing.assert_close(out, (1 - torch.tanh(x) ** 2).flatten().diag())


# What is refused


def square(x):
    return x**2


X = random(3)


def refused(call, out):
    """The error of a call, after which what was given is as it was."""
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    before = [leaf.detach().clone() for leaf in tensors]
    with pytest.raises(PullbackError) as caught:
        call(out)
    for leaf, was in zip(tensors, before, strict=True):
        torch.testing.assert_close(leaf.detach(), was, rtol=0, atol=0)
    return caught.value


BAD = {
    "shape": (lambda: torch.zeros(3, 2, dtype=torch.float64), "does not fit", "shape (3, 2), float64, on cpu"),
    "dtype": (lambda: torch.zeros(3, 3), "does not fit", "shape (3, 3), float32, on cpu"),
    "device": (lambda: torch.zeros(3, 3, dtype=torch.float64, device="meta"), "does not fit", "on meta"),
    "sparse": (lambda: torch.zeros(3, 3, dtype=torch.float64).to_sparse(), "cannot be written to", "a sparse tensor"),
    "grad": (
        lambda: torch.zeros(3, 3, dtype=torch.float64, requires_grad=True),
        "cannot be written to",
        "a tensor that requires grad",
    ),
    "expanded": (
        lambda: torch.zeros(3, dtype=torch.float64).expand(3, 3),
        "cannot be written to",
        "a tensor whose elements share memory (expanded?)",
    ),
    "overlapping": (
        lambda: torch.zeros(9, dtype=torch.float64).as_strided((3, 3), (1, 2)),
        "cannot be written to",
        "a tensor whose elements share memory (expanded?)",
    ),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("method", ["dense", "matrix"])
def test_a_tensor_that_will_not_do(kind, method):
    make, what, got = BAD[kind]
    J = pb.jacobian(square, X)
    if kind in {"device", "sparse"}:
        with pytest.raises(ValueMismatch) as caught:
            getattr(J, method)(out=make())
        error = caught.value
    else:
        error = refused(lambda out: getattr(J, method)(out=out), make())
    assert isinstance(error, ValueMismatch)
    assert error.what == ("out for output by x " if method == "dense" else "out ") + what
    assert got in error.got
    assert f"out = J.{method}() gives one that fits" in error.fix
    if what == "does not fit":
        assert "give shape (3, 3), float64, on cpu" in error.fix


@pytest.mark.parametrize("method", ["dense", "matrix", "blocks"])
def test_what_is_no_tensor(method):
    error = refused(lambda out: getattr(pb.jacobian(square, X), method)(out=out), 3)
    assert isinstance(error, ArgumentError)
    assert error.what.endswith("is not a tensor")
    assert error.got == "int"
    assert error.fix == f"out = J.{method}() gives one that fits"


def test_a_tensor_made_in_inference_mode():
    with torch.inference_mode():
        out = torch.zeros(3, 3, dtype=torch.float64)
    error = refused(lambda out: pb.jacobian(square, X).matrix(out=out), out)
    assert error.got == "a tensor made in inference mode"
    with torch.inference_mode():
        pb.jacobian(square, X).matrix(out=out)
        torch.testing.assert_close(out, (2 * X).diag())


def test_another_structure():
    J = pb.jacobian(several, TREE)
    good = J.dense()
    starts = "TreeSpec(dict, ['a'", "TreeSpec(dict, ['p']", "TreeSpec(list", "Tensor"
    for bad, start in zip((good["p"], {"p": good["p"]}, [good], good | {"q": good["q"]["a"]}), starts, strict=True):
        error = refused(lambda out: J.dense(out=out), bad)
        assert error.what == "out has another structure than J.dense()"
        assert error.fix.startswith("out = J.dense() gives one that fits: TreeSpec(dict, ['p', 'dead', 'q', 'ints']")
        assert error.got.startswith(start)


def test_a_hole_where_a_tensor_is_needed():
    J = pb.jacobian(several, TREE)
    out = J.dense()
    out["q"]["b"] = None
    error = refused(lambda out: J.dense(out=out), out)
    assert (error.what, error.got) == ("out for output['q'] by tree['b'] is not a tensor", "NoneType")


def test_a_layout_that_is_no_matrix():
    x = random(3, 2)
    J = pb.jacobian(lambda x: x.T.sin(), x)
    bad = torch.zeros(3, 2, 3, 2, dtype=torch.float64).transpose(0, 1)
    error = refused(lambda out: J.dense(out=out), bad)
    assert error.what == "out for output by x cannot be written as a matrix in its memory layout"
    assert error.got == "shape (2, 3, 3, 2), strides (6, 12, 2, 1)"
    assert error.fix == "give a contiguous tensor"


def test_parts_that_share_memory():
    J = pb.jacobian(lambda a, b: (a * b, a), X, X.clone(), wrt=(0, 1))
    shared = torch.zeros(3, 3, dtype=torch.float64)
    fine = [torch.zeros(3, 3, dtype=torch.float64) for _ in range(3)]
    error = refused(lambda out: J.dense(out=out), ((shared, fine[0]), (fine[1], shared)))
    assert error.what == "out shares memory with what must not change while it is written"
    assert set(error.got.split(" and ")) == {"out for output[0] by a", "out for output[1] by b"}
    assert error.fix == "give memory of its own: out = J.dense() gives one that fits"
    base = torch.zeros(7, dtype=torch.float64).repeat(3)
    halves = base.as_strided((3, 3), (7, 1)), base.as_strided((3, 3), (7, 1), 2)
    refused(lambda out: J.dense(out=out), ((halves[0], fine[0]), (fine[1], halves[1])))


def test_parts_of_one_matrix_share_none():
    J = pb.jacobian(lambda a, b: (a * b, a.sin()), X, X.clone(), wrt=(0, 1))
    whole = torch.full((6, 6), float("nan"), dtype=torch.float64)
    out = (whole[:3, :3], whole[:3, 3:]), (whole[3:, :3], whole[3:, 3:])
    J.dense(out=out)
    torch.testing.assert_close(whole, J.matrix())
    striped = torch.full((6, 6), float("nan"), dtype=torch.float64)
    out = (striped[:3, ::2], striped[:3, 1::2]), (striped[3:, ::2], striped[3:, 1::2])
    J.dense(out=out)
    torch.testing.assert_close(torch.cat([striped[:, ::2], striped[:, 1::2]], dim=1), whole)


def test_memory_of_the_inputs_and_of_the_value():
    x = random(9)
    J = pb.jacobian(lambda x: x[:1] * x.sum(), x)
    error = refused(lambda out: J.matrix(out=out), x.view(1, 9))
    assert set(error.got.split(" and ")) == {"out", "x"}
    scale = pb.jacobian(lambda x: x.exp(), torch.tensor(2.0))
    error = refused(lambda out: scale.dense(out=out), scale.value)
    assert set(error.got.split(" and ")) == {"out for output by x", "output"}


def test_results_that_have_to_be_differentiable():
    J = pb.jacobian(square, X, create_graph=True)
    for method in ("dense", "matrix", "blocks"):
        shape = (3, 1, 1) if method == "blocks" else (3, 3)
        error = refused(lambda out, method=method: getattr(J, method)(out=out), torch.zeros(shape, dtype=torch.float64))
        assert isinstance(error, ValueMismatch)
        assert error.what == "out= cannot be differentiated: what is written over has no graph"
        assert error.got == "create_graph=True and out=..."
        assert error.fix == "leave out= away, or make J without create_graph=True"


def test_inside_a_transform():
    out = torch.zeros(3, 3, dtype=torch.float64)

    def f(x):
        pb.jacobian(square, x).matrix(out=out)
        return x.sum()

    with pytest.raises(StrategyError) as caught:
        torch.func.grad(f)(X)
    assert caught.value.what == "out= cannot be written inside a torch.func transform"
    assert (out == 0).all()


def test_a_function_that_is_not_holomorphic_leaves_what_is_given():
    out = torch.zeros(4, 4, dtype=torch.complex128)
    error = refused(lambda out: pb.jacobian(lambda z: z.conj(), Z, holomorphic=True).matrix(out=out), out)
    assert "not holomorphic" in error.what


# The matrix that a grid is part of


def cut(matrix, heights, widths):
    return [list(row.split(widths, dim=1)) for row in matrix.split(heights)]


@pytest.mark.parametrize("heights", [[4], [1, 3], [1, 1, 2], [4, 0]])
@pytest.mark.parametrize("widths", [[6], [1, 5], [2, 1, 3], [6, 0]])
@pytest.mark.parametrize("layout", ["rows", "columns", "part"])
def test_the_parts_of_a_matrix_are_put_together(heights, widths, layout):
    matrix = {
        "rows": torch.arange(24).view(4, 6),
        "columns": torch.arange(24).view(6, 4).mT,
        "part": torch.arange(96).view(8, 12)[1::2, 2:8],
    }[layout]
    whole = tiled(cut(matrix, heights, widths))
    assert whole is not None
    assert whole.data_ptr() == matrix.data_ptr()
    torch.testing.assert_close(whole, matrix, rtol=0, atol=0)


def test_parts_that_are_no_matrix_are_not():
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    matrix = torch.zeros(4, 6)
    assert tiled([[a, b]]) is None
    assert tiled([[matrix[:2, :3], matrix[:2, 3:]], [matrix[2:, 3:], matrix[2:, :3]]]) is None
    assert tiled([[matrix[:1, :3]], [matrix[2:3, :3]], [matrix[3:, :3]]]) is None
    assert tiled([[matrix[2:3]], [matrix[:1]]]) is None
    assert tiled([[matrix[:, :2], matrix[:, 3:5].to(torch.float64)]]) is None


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
def test_on_a_gpu(strategy):
    f, x = deep(60, 40)
    w = f.__closure__[0].cell_contents.cuda()
    x = x.cuda()
    out = torch.full((60, 40), float("nan"), dtype=torch.float64, device="cuda")
    J = pb.jacobian(lambda x: torch.tanh(w @ x), x, strategy=strategy)
    torch.testing.assert_close(J.dense(out=out), (1 - torch.tanh(w @ x) ** 2)[:, None] * w)
    error = refused(lambda out: J.dense(out=out), out.cpu())
    assert error.got == "shape (60, 40), float64, on cpu"
