"""What goes in and what comes out: structures, shapes, dtypes, and vectors in three forms."""

import math
import warnings
from collections import namedtuple

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import ArgumentError, GraphError, StrategyError, ValueMismatch

Point = namedtuple("Point", "x y")


def nested(tree, word):
    assert word == "constant"
    return {"a": tree["w"] @ tree["l"][0], "b": (tree["l"][0] * tree["n"], tree["w"].sum())}


def nested_input():
    return {"w": torch.randn(2, 3), "n": 3, "k": torch.arange(3), "l": [torch.randn(3)]}


def test_value_shape_and_spaces_of_a_structure():
    tree = nested_input()
    J = pb.jacobian(nested, tree, "constant")
    assert J.shape == (6, 9)
    assert J.inputs.names == ("tree['w']", "tree['l'][0]")
    assert J.outputs.names == ("output['a']", "output['b'][0]", "output['b'][1]")
    assert J.outputs.offsets == (0, 2, 5)
    torch.testing.assert_close(J.value, nested(tree, "constant"))
    assert repr(J).startswith("Jacobian(6 x 9: tree['w'] (2, 3) float32")


def test_dense_nests_as_torch_func_does():
    x, y = torch.randn(3), {"p": torch.randn(2)}

    def f(x, y):
        return {"s": x.sum() * y["p"], "o": x[:, None] * y["p"]}

    ours = pb.jacobian(f, x, y, wrt=(0, 1)).dense()
    theirs = torch.func.jacrev(f, argnums=(0, 1))(x, y)
    torch.testing.assert_close(ours, theirs)


def test_constants_of_a_structure_stay_constant_and_come_back_as_none():
    J = pb.jacobian(nested, nested_input(), "constant")
    dense = J.dense()
    assert dense["a"]["n"] is None
    assert dense["a"]["k"] is None
    assert dense["a"]["w"].shape == (2, 2, 3)
    back = J.pullback(J.value)
    assert back["n"] is None
    assert back["w"].shape == (2, 3)


def test_the_answer_has_the_form_of_the_question():
    tree = nested_input()
    J = pb.jacobian(nested, tree, "constant")
    M = J.matrix()
    flat = torch.randn(9)
    torch.testing.assert_close(J @ flat, M @ flat)
    torch.testing.assert_close(J @ torch.eye(9), M)
    torch.testing.assert_close(J.T @ torch.eye(6), M.T)
    structured = J.inputs.unflatten([flat[:6].reshape(2, 3), flat[6:]])
    pushed = J @ structured
    torch.testing.assert_close(pushed["a"], (M @ flat)[:2])
    torch.testing.assert_close(pushed["b"][1], (M @ flat)[5])
    torch.testing.assert_close(J.pushforward(structured), pushed)


def test_namedtuples_in_and_out():
    J = pb.jacobian(lambda p: Point(p.x * p.y, p.y), Point(torch.ones(2), torch.full((2,), 3.0)))
    dense = J.dense()
    assert isinstance(dense, Point)
    assert isinstance(dense.x, Point)
    torch.testing.assert_close(dense.x.x, 3 * torch.eye(2))


def test_a_dataclass_known_to_pytree():
    import dataclasses

    from torch.utils import _pytree

    @dataclasses.dataclass
    class State:
        q: torch.Tensor
        v: torch.Tensor

    _pytree.register_pytree_node(
        State,
        lambda each: ([each.q, each.v], None),
        lambda values, _: State(*values),
        flatten_with_keys_fn=lambda each: (
            [(_pytree.GetAttrKey("q"), each.q), (_pytree.GetAttrKey("v"), each.v)],
            None,
        ),
    )
    J = pb.jacobian(lambda s: State(s.v, -s.q), State(torch.ones(2), torch.ones(2)))
    dense = J.dense()
    torch.testing.assert_close(dense.q.v, torch.eye(2))
    torch.testing.assert_close(dense.v.q, -torch.eye(2))
    torch.testing.assert_close(J.matrix() @ torch.ones(4), (J @ torch.ones(4)))


def test_scalars_have_no_dimensions():
    J = pb.jacobian(lambda x: x**3, torch.tensor(2.0))
    assert J.shape == (1, 1)
    assert J.dense().shape == ()
    assert J.dense() == 12
    assert J @ torch.tensor(2.0) == 24
    assert (J @ torch.ones(1, 5)).shape == (1, 5)
    assert (J.T @ torch.ones(1, 5)).shape == (1, 5)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_zero_size_tensors(shape):
    J = pb.jacobian(lambda x: x * 2, torch.ones(shape))
    assert J.shape == (0, 0)
    assert J.dense().shape == shape + shape
    assert J.matrix().shape == (0, 0)
    assert (J @ torch.ones(shape)).shape == shape
    assert (J @ torch.ones(0, 4)).shape == ((0, 4) if shape != (0, 4) else shape)
    assert J.gram().shape == (0, 0)
    assert J.norm() == 0
    assert J.diagonal().shape == (0,)
    assert J.rows(slice(None)).shape == (0, 0)


def test_a_zero_size_leaf_beside_others():
    J = pb.jacobian(lambda a, b: (a.sum() + b * 2, a), torch.ones(0, 3), torch.ones(2), wrt=(0, 1))
    torch.testing.assert_close(J.matrix(), 2 * torch.eye(2))
    torch.testing.assert_close(J.T @ torch.ones(2), torch.full((2,), 2.0))


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_expanded_and_transposed_inputs(strategy):
    def f(x):
        return (x.sin().T * 2).contiguous()

    for x in (torch.randn(3, 1).expand(3, 4), torch.randn(4, 3).T):
        torch.testing.assert_close(pb.jacobian(f, x, strategy=strategy).dense(), torch.func.jacrev(f)(x))


def test_the_same_tensor_given_twice_is_two_inputs():
    x = torch.randn(3)
    by_both = pb.jacobian(lambda a, b: a * b, x, x, wrt=(0, 1)).dense()
    torch.testing.assert_close(by_both, (x.diag(), x.diag()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x = torch.randn(5, dtype=dtype)
    J = pb.jacobian(lambda x: (x**2).cumsum(0), x)
    expected = torch.tril(torch.ones(5, 5)) * (2 * x.float())
    for matrix in (J.matrix(), J.columns(slice(None)), J.rows(range(5)), J @ torch.eye(5, dtype=dtype)):
        assert matrix.dtype == dtype
        torch.testing.assert_close(matrix.float(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(J.norm().float(), torch.linalg.matrix_norm(expected, 2), rtol=3e-2, atol=0)


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_blocks_have_the_dtype_of_their_input_in_every_strategy(strategy):
    a, b = torch.randn(3), torch.randn(3, dtype=torch.float64)
    J = pb.jacobian(lambda a, b: (a.double() * b, a.sum()), a, b, wrt=(0, 1), strategy=strategy)
    assert [[block.dtype for block in row] for row in J.dense()] == [[torch.float32, torch.float64]] * 2
    assert J.matrix().dtype == torch.float64
    assert (J @ torch.ones(6)).dtype == torch.float64


def test_a_vector_is_cast_only_where_nothing_is_lost():
    J = pb.jacobian(lambda x: x * 2, torch.ones(2, dtype=torch.float16))
    torch.testing.assert_close(J @ torch.ones(2, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float16))
    with pytest.raises(pb.errors.SeedError, match="overflows"):
        J.T @ torch.full((2,), 1e6)


@pytest.mark.parametrize(
    ("vector", "error", "got", "fix"),
    [
        (torch.ones(4), ValueMismatch, "a tensor of shape (4,)", "give shape (3,), (3, k) or (3,)"),
        (torch.ones(2, 3), ValueMismatch, "a tensor of shape (2, 3)", "give shape (3,), (3, k) or (3,)"),
        ([1.0, 2.0, 3.0], ArgumentError, "list", "torch.as_tensor"),
        (2.0, ArgumentError, "float", "torch.as_tensor"),
    ],
)
def test_a_vector_that_does_not_fit(vector, error, got, fix):
    J = pb.jacobian(torch.sin, torch.ones(3))
    with pytest.raises(error) as caught:
        J @ vector
    assert got in caught.value.got
    assert fix in caught.value.fix


def test_structured_products_need_the_structure():
    J = pb.jacobian(lambda d: d["a"], {"a": torch.ones(3), "b": torch.ones(2)})
    with pytest.raises(ValueMismatch, match="structure") as caught:
        J.pushforward(torch.ones(5))
    assert "J @ v" in caught.value.fix
    with pytest.raises(ValueMismatch) as caught:
        J @ {"a": torch.ones(3)}
    assert "structure" in caught.value.what
    with pytest.raises(ValueMismatch) as caught:
        J @ {"a": torch.ones(3), "b": torch.ones(3)}
    assert caught.value.got == "(3,)"
    assert caught.value.fix == "give shape (2,)"
    # The order of a dict's keys is no part of its structure.
    torch.testing.assert_close(J @ {"b": torch.zeros(2), "a": torch.ones(3)}, torch.ones(3))


@pytest.mark.parametrize("index", ["a", 1.5, None, torch.tensor([0.5]), torch.tensor([True, False, True])])
def test_an_index_that_is_none(index):
    with pytest.raises(ArgumentError, match="row index"):
        pb.jacobian(torch.sin, torch.ones(3)).rows(index)


@pytest.mark.parametrize("index", [3, -4, [0, 5]])
def test_an_index_out_of_range(index):
    J = pb.jacobian(torch.sin, torch.ones(3))
    with pytest.raises(ValueMismatch, match="column index out of range") as caught:
        J.columns(index)
    assert caught.value.fix == "0 to 2"


def test_parameters_of_a_module_by_name():
    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    m[0].bias.requires_grad_(False)
    x = torch.randn(5, 3)
    dense = pb.jacobian(m, x, wrt="parameters").dense()
    parameters = dict(m.named_parameters())
    theirs = torch.func.jacrev(lambda p: torch.func.functional_call(m, p, (x,)))(parameters)
    assert list(dense) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    torch.testing.assert_close(dense, {name: part.detach() for name, part in theirs.items()})
    some = pb.jacobian(m, x, wrt=("2.bias", "0.weight")).dense()
    assert list(some) == ["2.bias", "0.weight"]
    torch.testing.assert_close(some["0.weight"], dense["0.weight"])
    assert not m[0].bias.requires_grad
    assert all(parameter.grad is None for parameter in m.parameters())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.b = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x).tanh())


@pytest.mark.parametrize("wrt", ["parameters", ("a.weight",), ("b.weight",)])
def test_tied_parameters_count_once(wrt):
    m, x = Tied(), torch.randn(2, 3, dtype=torch.float64)
    (block,) = pb.jacobian(m, x, wrt=wrt).dense().values()
    expected = torch.autograd.functional.jacobian(lambda w: (x @ w.T).tanh() @ w.T, m.a.weight.detach())
    torch.testing.assert_close(block, expected)


def test_blocks_are_per_example():
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    for strategy in ("auto", "blocks"):
        J = pb.jacobian(m, x, strategy=strategy)
        torch.testing.assert_close(J.blocks(), torch.func.vmap(torch.func.jacrev(m))(x).detach())
        assert J.plan().passes == 2


def test_blocks_of_a_structure_with_dead_leaves():
    def f(x, y):
        return {"s": x * y[:, :1], "dead": y.detach(), "t": (y**2).sum(1)}

    x, y = torch.randn(4, 2), torch.randn(4, 3)
    blocks = pb.jacobian(f, x, y, wrt=(0, 1)).blocks()
    dense = pb.jacobian(f, x, y, wrt=(0, 1)).matrix()
    assert blocks.shape == (4, 6, 5)
    for b in range(4):
        rows = [2 * b, 2 * b + 1, *range(8 + 3 * b, 11 + 3 * b), 20 + b]
        columns = [2 * b, 2 * b + 1, *range(8 + 3 * b, 11 + 3 * b)]
        torch.testing.assert_close(blocks[b], dense[rows][:, columns])


def test_blocks_by_forward_passes_where_an_example_has_fewer_inputs():
    w = torch.randn(2, 40)
    J = pb.jacobian(lambda x: (x @ w).sin(), torch.randn(10, 2))
    blocks = J.blocks()
    torch.testing.assert_close(blocks, (J.value.asin().cos()[:, :, None] * 0 + blocks))
    torch.testing.assert_close(blocks, torch.func.vmap(torch.func.jacrev(lambda x: (x @ w).sin()))(J._lin.problem.tree))
    assert J.plan().passes == 2


def test_blocks_refuse_examples_that_mix():
    m = nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    with pytest.raises(StrategyError) as caught:
        pb.jacobian(m, x).blocks()
    assert "examples mix" in caught.value.got
    assert "model.eval()" in caught.value.fix
    m.eval()
    torch.testing.assert_close(
        pb.jacobian(m, x).blocks(), (m.weight / (m.running_var + m.eps).sqrt()).detach().diag().expand(5, 3, 3)
    )


def test_blocks_refuse_without_a_batch():
    with pytest.raises(StrategyError) as caught:
        pb.jacobian(lambda x: x.sum(), torch.ones(3)).blocks()
    assert "no leading dimension" in caught.value.got


@pytest.mark.parametrize("verify", [True, False])
def test_a_single_pair_of_examples_that_mix_is_found(verify):
    """Example i reads example j and nothing else is out of line: no pair may be missed, verified or not."""
    x = torch.randn(10)
    for i in range(10):
        for j in range(10):
            if i == j:
                continue

            def f(x, i=i, j=j):
                y = x.sin()
                y[i] = y[i] + x[j] ** 2
                return y

            expected = x.cos().diag()
            expected[i, j] = 2 * x[j]
            J = pb.jacobian(f, x, verify=verify)
            torch.testing.assert_close(J.matrix(), expected)
            torch.testing.assert_close(J.diagonal(), x.cos())
            with pytest.raises(StrategyError, match="blocks"):
                pb.jacobian(f, x, verify=verify).blocks()


def test_the_diagonal_of_an_elementwise_function_takes_one_pass(monkeypatch):
    x = torch.randn(30, 40)
    J = pb.jacobian(torch.sin, x)
    calls = []
    pull = type(J._lin).pull
    monkeypatch.setattr(type(J._lin), "pull", lambda self, seeds: calls.append(1) or pull(self, seeds))
    torch.testing.assert_close(J.diagonal(), x.cos().flatten())
    assert len(calls) < 30


def test_singular_values_without_a_matrix():
    a = torch.randn(1500, 1200, dtype=torch.float64)
    J = pb.jacobian(lambda x: a @ x, torch.randn(1200, dtype=torch.float64))
    expected = torch.linalg.svdvals(a)
    torch.testing.assert_close(J.singular_values(3), expected[:3])
    torch.testing.assert_close(J.norm(), expected[0])
    for k in (0, 1201, True, 2.5):
        with pytest.raises(ValueMismatch, match="singular values"):
            J.singular_values(k)
    with pytest.raises(ValueMismatch, match="spectral or Frobenius"):
        J.norm("nuc")


def test_to_scipy_is_a_linear_operator():
    import numpy as np
    from scipy.sparse.linalg import lsqr

    a = torch.randn(6, 4, dtype=torch.float64)
    op = pb.jacobian(lambda x: a @ x, torch.zeros(4, dtype=torch.float64)).to_scipy()
    assert op.shape == (6, 4)
    assert op.dtype == np.float64
    b = np.arange(6.0)
    np.testing.assert_allclose(lsqr(op, b)[0], np.linalg.lstsq(a.numpy(), b, rcond=None)[0], rtol=1e-6)
    np.testing.assert_allclose(op.rmatmat(np.eye(6)), a.numpy().T)
    np.testing.assert_allclose(op @ np.eye(4), a.numpy())


def test_operators_compose_only_where_spaces_meet():
    J, K = pb.jacobian(torch.sin, torch.ones(3)), pb.jacobian(torch.sin, torch.ones(4))
    for expression in (lambda: J + K, lambda: J @ K, lambda: J - K):
        with pytest.raises(ValueMismatch, match="differ"):
            expression()
    with pytest.raises(ArgumentError, match="one real number"):
        J * torch.ones(3)
    with pytest.raises(TypeError):
        J + 1
    outer = pb.jacobian(lambda y: y**2, torch.sin(torch.ones(3)))
    chain = pb.jacobian(lambda x: x.sin() ** 2, torch.ones(3))
    torch.testing.assert_close((outer @ J).matrix(), chain.matrix())
    torch.testing.assert_close((outer @ J).T @ torch.ones(3), chain.T @ torch.ones(3))
    torch.testing.assert_close((J + J).T @ torch.ones(3), 2 * (J.T @ torch.ones(3)))
    assert J.T.T is J


def test_has_aux():
    J = pb.jacobian(lambda x: (x * 2, {"word": "aux", "t": x.detach()}), torch.ones(2), has_aux=True)
    assert J.aux["word"] == "aux"
    torch.testing.assert_close(J.dense(), 2 * torch.eye(2))
    with pytest.raises(ArgumentError, match="has_aux"):
        pb.jacobian(lambda x: x, torch.ones(2), has_aux=True)


def test_jacobian_of_tensors_computed_already():
    x = torch.randn(3, requires_grad=True)
    h = x**2
    y = h.sin()
    torch.testing.assert_close(pb.jacobian_of(y, h).dense(), h.cos().diag().detach())
    J = pb.jacobian_of({"y": y}, {"x": x})
    torch.testing.assert_close(J.dense()["y"]["x"], (2 * x * h.cos()).diag().detach())
    torch.testing.assert_close(J @ torch.ones(3), (2 * x * h.cos()).detach())
    torch.testing.assert_close(J @ torch.eye(3), J.matrix())
    y.sum().backward()
    torch.testing.assert_close(x.grad, (2 * x * h.cos()).detach())


def test_jacobian_of_what_has_no_graph():
    with pytest.raises(GraphError, match="does not require grad"):
        pb.jacobian_of(torch.ones(2), torch.ones(2))
    with pytest.raises(ArgumentError, match="no tensor"):
        pb.jacobian_of(1.0, torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    J = pb.jacobian_of(x.detach() * 2, x)
    assert not J.matrix().any()
    assert any("no graph" in note for note in J.plan().notes)


def test_create_graph_keeps_results_differentiable_in_every_strategy():
    def f(x):
        return torch.stack([x[0] ** 3 * x[1], x[2].exp() * x[0]])

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = torch.func.grad(lambda x: torch.func.jacrev(f)(x).pow(2).sum())(x.detach())
    for strategy in ("rows", "columns"):
        J = pb.jacobian(f, x, create_graph=True, strategy=strategy)
        (gradient,) = torch.autograd.grad(J.dense().pow(2).sum(), x)
        torch.testing.assert_close(gradient, expected)
    v = torch.ones(3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((pb.jacobian(f, x, create_graph=True) @ v).pow(2).sum(), x)
    expected = torch.func.grad(lambda x: torch.func.jvp(f, (x,), (v,))[1].pow(2).sum())(x.detach())
    torch.testing.assert_close(gradient, expected)


def test_results_carry_no_graph_and_keep_none_alive():
    import gc
    import weakref

    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    J = pb.jacobian(m, torch.randn(5, 3))
    results = [J.dense(), J.blocks(), J.gram(), J @ torch.randn(5, 3), J.T @ torch.randn(5, 2), J.value, J.rows(0)]
    assert not any(result.requires_grad for result in results)
    graph = weakref.ref(J._lin)
    del J
    gc.collect()
    assert graph() is None


def test_gradients_do_not_alias_the_seed():
    u = torch.randn(3)
    J = pb.jacobian(lambda x: x, torch.randn(3))
    before = u.clone()
    (J.T @ u).add_(1)
    (J @ u).add_(1)
    torch.testing.assert_close(u, before)


def test_nothing_of_this_is_a_loop_over_nan():
    J = pb.jacobian(lambda x: x.sqrt(), torch.tensor([0.0, 1.0]))
    matrix = J.matrix()
    assert math.isinf(matrix[0, 0])
    assert matrix[1, 1] == 0.5


@pytest.mark.gpu
def test_cuda_in_cuda_out():
    for each in pb.testing.scenarios(torch.float64, "cuda"):
        J = pb.jacobian(each.f, *each.args)
        assert J.matrix().device.type == "cuda"
        torch.testing.assert_close(J.matrix(), each.matrix)


@pytest.mark.gpu
def test_inputs_on_two_devices():
    a, b = torch.randn(3), torch.randn(3, device="cuda")
    for strategy in ("rows", "columns"):
        J = pb.jacobian(lambda a, b: a.cuda() * b, a, b, wrt=(0, 1), strategy=strategy)
        by_a, by_b = J.dense()
        assert by_a.device.type == "cpu"
        assert by_b.device.type == "cuda"
        torch.testing.assert_close(by_b.cpu(), a.diag())


def test_examples_that_begin_to_mix_at_another_point_are_found():
    """The proof of one point is not taken for the next: one pair mixes at each later point, another every time."""

    def f(x):
        y = x.sin()
        if x[0] > 0:
            i, j = int(x[1]), int(x[2])
            y[i] = y[i] + x[j] ** 2
        return y

    apart = torch.full((10,), -0.5)
    torch.testing.assert_close(pb.jacobian(f, apart).diagonal(), apart.cos())
    torch.testing.assert_close(pb.jacobian(f, apart).matrix(), apart.cos().diag())
    for i in range(3, 10):
        for j in range(3, 10):
            if i == j:
                continue
            x = torch.linspace(0.5, 1.5, 10)
            x[1], x[2] = i + 0.5, j + 0.5
            expected = x.cos().diag()
            expected[i, j] = 2 * x[j]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pb.errors.PullbackWarning)
                torch.testing.assert_close(pb.jacobian(f, x).diagonal(), x.cos())
                torch.testing.assert_close(pb.jacobian(f, x).matrix(), expected)
                torch.testing.assert_close(pb.jacobian(f, x, verify=False).matrix(), expected)
                with pytest.raises(StrategyError, match="blocks"):
                    pb.jacobian(f, x).blocks()
