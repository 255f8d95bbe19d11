"""Agreement with torch.func.jacrev, jacfwd and torch.autograd.functional.jacobian, and where those are wrong.

The row-by-row oracle judges each Jacobian too: agreement of two wrong ones is no proof.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import PullbackWarning

from .examine import Findings, examine, examine_call
from .oracle import difference, truth_of, truth_of_graph


def randn(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def agrees(found: Any, expected: Any) -> None:
    """Two structures of tensors are the same structure of nearly the same numbers."""
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert not difference(one, other)
        assert one.dtype == other.dtype


def check(f: Callable[[Any], Any], x: Any, *, warns: bool = False, forward: bool = True) -> None:
    """Every strategy and product of J against the oracle."""
    _sound(examine(f, x), warns=warns, forward=forward)


def _sound(found: Findings, *, warns: bool = False, forward: bool = True) -> None:
    assert not found.problems, "\n".join(found.problems)
    assert bool(found.warned) == warns, found.warned
    assert bool(found.refused) != forward, found.refused


# --- pytrees -----------------------------------------------------------------------------------------------------


def nested(p: dict[str, Any], q: tuple[Tensor, list[Tensor]]) -> dict[str, Any]:
    """Structures in, structures out."""
    hidden = torch.tanh(q[0] @ p["w"] + p["b"][0])
    return {"sum": hidden.sum() * q[1][0], "pair": (hidden, [hidden[0] * p["b"][1]])}


def nested_arguments() -> tuple[dict[str, Any], tuple[Tensor, list[Tensor]]]:
    """Arguments of :func:`nested`."""
    return {"w": randn(3, 2), "b": (randn(2), randn(()))}, (randn(4, 3), [randn(2)])


@pytest.mark.parametrize("wrt", [0, 1, (0, 1), (1, 0), (1,)])
def test_dense_is_nested_as_torch_func_does(wrt: int | tuple[int, ...]) -> None:
    args = nested_arguments()
    found = pb.jacobian(nested, *args, wrt=wrt).dense()
    agrees(found, torch.func.jacrev(nested, argnums=wrt)(*args))
    agrees(found, torch.func.jacfwd(nested, argnums=wrt)(*args))


def test_nested_structures_against_the_oracle() -> None:
    check(lambda x: nested(*x), nested_arguments())


def test_functional_jacobian_of_several_arguments() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return x * y.sum() + z[:, None], (x @ x.T) * y[0]

    args = randn(3, 2), randn(2), randn(3)
    expected = torch.autograd.functional.jacobian(f, args)
    agrees(pb.jacobian(f, *args, wrt=(0, 1, 2)).dense(), expected)


def test_has_aux_agrees_with_torch_func() -> None:
    def f(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x.sin() * x.sum(), {"norm": x.norm()}

    x = randn(4)
    J = pb.jacobian(f, x, has_aux=True)
    expected, aux = torch.func.jacrev(f, has_aux=True)(x)
    agrees(J.dense(), expected)
    agrees(J.aux, aux)


# --- modules -----------------------------------------------------------------------------------------------------


def module_checks(module: nn.Module, *args: Any, parameters: bool = True) -> None:
    """By the first argument and by the parameters: against the oracle, and against torch.func's jacrev."""
    leaf = args[0].detach().requires_grad_()
    torch.manual_seed(0)
    truth = truth_of_graph(module(leaf, *args[1:]), [leaf])
    torch.manual_seed(0)
    ways = [lambda strategy: pb.jacobian(module, *args, strategy=strategy)]
    truths = [truth]
    if parameters:
        torch.manual_seed(0)
        truths.append(truth_of_graph(module(*args), list(module.parameters())))
        ways.append(lambda strategy: pb.jacobian(module, *args, wrt="parameters", strategy=strategy))
    for make, expected in zip(ways, truths, strict=True):
        _sound(examine_call(make, expected, args))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent(kind: type[nn.Module]) -> None:
    module_checks(kind(3, 2, num_layers=2, batch_first=True).double(), randn(2, 4, 3))


def test_bidirectional_lstm_agrees_with_jacrev() -> None:
    lstm, x = nn.LSTM(3, 2, bidirectional=True).double(), randn(3, 1, 3)
    parameters = {name: parameter.detach() for name, parameter in lstm.named_parameters()}
    J = pb.jacobian(lstm, x, wrt="parameters")
    agrees(J.dense(), torch.func.jacrev(lambda p: torch.func.functional_call(lstm, p, (x,)))(parameters))


@pytest.mark.parametrize("training", [False, True])
def test_multihead_attention(training: bool) -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True).double().train(training)
    x = randn(1, 3, 4)

    def f(x: Tensor) -> Tensor:
        return attention(x, x, x, need_weights=True)[0]

    check(f, x)
    agrees(pb.jacobian(f, x).dense(), torch.func.jacrev(f)(x))


def test_fused_attention_has_no_forward_pass_of_its_own_and_is_right_all_the_same() -> None:
    q, k, v = randn(1, 2, 3, 4), randn(1, 2, 3, 4), randn(1, 2, 3, 4)
    check(lambda x: F.scaled_dot_product_attention(*x), (q, k, v))
    J = pb.jacobian(F.scaled_dot_product_attention, q, k, v, wrt=(0, 1, 2))
    agrees(J.dense(), torch.autograd.functional.jacobian(F.scaled_dot_product_attention, (q, k, v)))


def test_masked_attention_by_its_formula() -> None:
    q, k, v = randn(1, 1, 3, 2), randn(1, 1, 3, 2), randn(1, 1, 3, 2)
    mask = torch.ones(3, 3).tril().bool()

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT / 2**0.5).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    agrees(pb.jacobian(fused, q, k, v, wrt=(0, 1, 2)).matrix(), pb.jacobian(by_hand, q, k, v, wrt=(0, 1, 2)).matrix())


def transformer() -> nn.TransformerEncoder:
    """A small one, in evaluation mode."""
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()


def test_transformer_encoder() -> None:
    module_checks(transformer(), randn(2, 3, 4))


def test_a_module_called_twice() -> None:
    linear = nn.Linear(3, 3).double()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.tanh(self.linear(x)))

    module_checks(Twice(), randn(2, 3))


def test_shared_weights_are_counted_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(2, 4, bias=False)
            self.unembed = nn.Linear(4, 2, bias=False)
            self.scale = nn.Parameter(torch.ones(4))
            self.again = self.embed

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.again(x) * self.scale, self.embed.weight.T) + self.unembed(self.embed(x))

    tied = Tied().double()
    assert pb.jacobian(tied, randn(3, 2), wrt="parameters").shape[1] == 8 + 8 + 4
    module_checks(tied, randn(3, 2))


def test_batch_norm_in_training_mixes_examples() -> None:
    module_checks(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).double(), randn(5, 3))


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.RReLU()])
def test_random_modules_draw_once(dropout: nn.Module) -> None:
    check(nn.Sequential(nn.Linear(3, 4).double(), dropout), randn(2, 3))


# --- checkpoint and compile ---------------------------------------------------------------------------------------


def test_checkpoint() -> None:
    block = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    check(lambda x: checkpoint(block, x, use_reentrant=False) * 2, randn(2, 3))


def test_checkpointed_dropout_replays_its_mask() -> None:
    block = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2)).double()
    check(lambda x: checkpoint(block, x, use_reentrant=False), randn(2, 3))


def compiled(f: Any, backend: str) -> Any:
    """A compiled function, without the warnings of the compiler's own imports."""
    torch._dynamo.reset()
    return torch.compile(f, backend=backend, fullgraph=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("backend", "forward"), [("eager", True), ("aot_eager", False), ("inductor", False)])
def test_compiled_function(backend: str, forward: bool) -> None:
    if backend == "inductor" and shutil.which("c++") is None:
        pytest.skip("inductor needs a C++ compiler on the CPU")

    def f(x: Tensor) -> Tensor:
        return torch.sin(x) @ x.T + x.sum()

    x = randn(3, 2)
    _sound(examine(compiled(f, backend), x, truth_of(f, x)), forward=forward)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_module() -> None:
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), randn(5, 3)
    J = pb.jacobian(compiled(module, "aot_eager"), x)
    agrees(J.dense(), pb.jacobian(module, x).dense())
    by_parameters = pb.jacobian(compiled(module, "aot_eager"), x, wrt="parameters")
    agrees(by_parameters.matrix(), pb.jacobian(module, x, wrt="parameters").matrix())


# --- custom functions --------------------------------------------------------------------------------------------


class OldStyle(torch.autograd.Function):
    """ctx in forward: torch.func refuses it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


class WithSetup(torch.autograd.Function):
    """setup_context, but no vmap rule."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


class WithVmap(WithSetup):
    """A vmap rule that torch makes."""

    generate_vmap_rule = True


class WithJvp(WithSetup):
    """A forward formula too."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * 3 * x**2


class WrongJvp(WithJvp):
    """A forward formula that disagrees with the backward."""

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * 2 * x**2


class WithNumpy(torch.autograd.Function):
    """Leaves torch in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.power(x.detach().numpy(), 3))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * 3 * np.square(x.detach().numpy()))


@pytest.mark.parametrize(
    ("function", "forward", "warns"),
    [
        (OldStyle, True, False),
        (WithSetup, True, False),
        (WithVmap, True, False),
        (WithJvp, True, False),
        (WrongJvp, True, True),
        (WithNumpy, False, True),  # .numpy() in backward cuts the second derivative without a word
    ],
)
def test_custom_function(function: type[torch.autograd.Function], forward: bool, warns: bool) -> None:
    check(lambda x: function.apply(x.sin()) * x, randn(4), forward=forward, warns=warns)


def test_a_branch_without_forward_pass_after_one_with() -> None:
    """What was found out about a function holds for the branch it took then."""

    def f(x: Tensor) -> Tensor:
        return x.sin() if x.detach().sum() > 0 else OldStyle.apply(x)

    x = randn(3).abs()
    check(f, x)
    check(f, -x)


def test_expanded_inputs() -> None:
    check(lambda x: x.sin() * x.sum(), randn(1, 2).expand(3, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_wrong_formula_is_seen_in_every_dtype(dtype: torch.dtype) -> None:
    x = (1 + torch.rand(6, dtype=torch.float64)).to(dtype)
    check(WrongJvp.apply, x, warns=True)
    check(WithJvp.apply, x)


# --- where torch is wrong ----------------------------------------------------------------------------------------


def test_custom_op_whose_forward_tangent_is_zero() -> None:
    """torch.library.custom_op has no forward formula, and torch.func.jvp gives zeros without a word."""

    @torch.library.custom_op("pullback_sweep::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = randn(3)
    _, tangent = torch.func.jvp(cube, (x,), (torch.ones_like(x),))
    assert not tangent.any()
    check(cube, x, warns=True)


def test_cdist_is_wrong_under_vmap() -> None:
    """Known in torch: the batched backward of cdist."""
    x, y = randn(4, 3), randn(5, 3)

    def f(x: Tensor) -> Tensor:
        return torch.cdist(x, y, p=1.0)

    assert difference(torch.func.jacrev(f)(x), torch.autograd.functional.jacobian(f, x))
    check(f, x, warns=True, forward=False)


def test_scatter_reduce_prod_is_wrong_in_forward_mode() -> None:
    index = torch.tensor([0, 1, 0, 1])

    def f(x: Tensor) -> Tensor:
        return torch.ones(2, dtype=x.dtype).scatter_reduce(0, index, x, "prod")

    x = randn(4)
    assert difference(torch.func.jacfwd(f)(x), torch.autograd.functional.jacobian(f, x))
    check(f, x, warns=True)


def test_cholesky_inverse_is_wrong_in_forward_mode() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cholesky_inverse(x.tril())

    x = randn(3, 3) + 3 * torch.eye(3)
    assert difference(torch.func.jacfwd(f)(x), torch.autograd.functional.jacobian(f, x))
    check(f, x, warns=True)


def test_rolling_a_number_is_wrong_under_vmap() -> None:
    x = randn(())
    assert not torch.equal(torch.func.vmap(lambda t: t.roll(1))(torch.arange(3.0)), torch.arange(3.0))
    with pytest.warns(PullbackWarning, match="batched by vmap disagrees"):
        found = pb.jacobian(lambda x: x.roll(1), x).T @ torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    assert found.tolist() == [[1.0, 2.0, 3.0]]


def test_no_grad_does_not_stop_a_tangent() -> None:
    """torch.no_grad stops reverse mode only; .detach() stops both."""

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = x.sum()
        return x * constant

    x = randn(3)
    assert difference(torch.func.jacfwd(f)(x), torch.autograd.functional.jacobian(f, x))
    check(f, x, warns=True)
    check(lambda x: x * x.sum().detach(), x)


def test_strict_raises_where_torch_is_wrong() -> None:
    index = torch.tensor([0, 1, 0, 1])
    J = pb.jacobian(lambda x: torch.ones(2, dtype=x.dtype).scatter_reduce(0, index, x, "prod"), randn(4), strict=True)
    with pytest.raises(pb.errors.VerificationError, match="disagrees with a plain reverse pass"):
        J @ randn(4)


# --- inside and around torch.func ---------------------------------------------------------------------------------


def cubic(x: Tensor) -> Tensor:
    """A function with a Jacobian that is not symmetric and not constant."""
    return torch.stack([(x**3).sum(), x[0] * x[1], (x[1:] ** 2).sum() * x[0]])


def penalty(x: Tensor) -> Tensor:
    """The squared norm of a Jacobian built by Pullback."""
    return pb.jacobian(cubic, x).matrix().square().sum()


def reference(x: Tensor) -> Tensor:
    """The same, built by torch.func."""
    return torch.func.jacrev(cubic)(x).square().sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        torch.func.jacrev,
        torch.func.jacfwd,
        torch.func.hessian,
        torch.func.vmap,
        lambda f: torch.func.vmap(torch.func.grad(f)),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
        lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones((), dtype=x.dtype))[0],
        lambda f: torch.func.functionalize(f),
    ],
    ids=["grad", "jacrev", "jacfwd", "hessian", "vmap", "vmap of grad", "jvp", "vjp", "functionalize"],
)
def test_pullback_inside_torch_func(transform: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    x = randn(4, 3) if "vmap" in request.node.callspec.id else randn(3)
    agrees(transform(penalty)(x), transform(reference)(x))


@pytest.mark.parametrize("product", ["J @ v", "J.T @ u", "rows", "columns"])
def test_products_inside_vmap_and_grad(product: str) -> None:
    def f(x: Tensor) -> Tensor:
        J = pb.jacobian(cubic, x)
        found = {
            "J @ v": lambda: J @ x.cos(),
            "J.T @ u": lambda: J.T @ x.cos(),
            "rows": lambda: J.rows(1),
            "columns": lambda: J.columns(1),
        }[product]()
        return found.square().sum()

    def expected(x: Tensor) -> Tensor:
        J = torch.func.jacrev(cubic)(x)
        found = {"J @ v": J @ x.cos(), "J.T @ u": J.T @ x.cos(), "rows": J[1], "columns": J[:, 1]}[product]
        return found.square().sum()

    x = randn(4, 3)
    agrees(torch.func.vmap(torch.func.grad(f))(x), torch.func.vmap(torch.func.grad(expected))(x))


def test_torch_func_inside_f() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.func.grad(lambda z: (z**3).sum())(x) + torch.func.vmap(torch.sin)(x)

    check(f, randn(3))


def test_torch_func_jvp_inside_f() -> None:
    """Forward over forward and reverse over forward."""

    def f(x: Tensor) -> Tensor:
        return torch.func.jvp(torch.sin, (x,), (x * x,))[1]

    check(f, randn(3))


def test_pullback_inside_pullback() -> None:
    def f(x: Tensor) -> Tensor:
        return pb.jacobian(cubic, x).matrix().flatten()

    x = randn(3)
    expected = torch.func.jacrev(lambda x: torch.func.jacrev(cubic)(x).flatten())(x)
    for strategy in ("rows", "columns", "auto"):
        agrees(pb.jacobian(f, x, strategy=strategy).matrix(), expected)


def test_products_of_pullback_inside_pullback() -> None:
    def f(x: Tensor) -> Tensor:
        J = pb.jacobian(cubic, x)
        return torch.cat([J @ x, J.T @ x.sin()])

    def expected(x: Tensor) -> Tensor:
        J = torch.func.jacrev(cubic)(x)
        return torch.cat([J @ x, J.T @ x.sin()])

    x = randn(3)
    agrees(pb.jacobian(f, x).matrix(), torch.func.jacrev(expected)(x))


# --- create_graph -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["rows", "columns", "auto"])
def test_create_graph_gives_second_derivatives(strategy: str) -> None:
    x = randn(3).requires_grad_()
    matrix = pb.jacobian(cubic, x, create_graph=True, strategy=strategy).matrix()
    weights = randn(3, 3)
    (found,) = torch.autograd.grad((matrix * weights).sum(), x)
    agrees(found, torch.func.grad(lambda x: (torch.func.jacrev(cubic)(x) * weights).sum())(x.detach()))


@pytest.mark.parametrize("product", [lambda J, v: J @ v, lambda J, v: J.T @ v], ids=["J @ v", "J.T @ u"])
def test_create_graph_of_products(product: Callable[..., Tensor]) -> None:
    x, v = randn(3).requires_grad_(), randn(3)
    pushed = product(pb.jacobian(cubic, x, create_graph=True), v)
    (found,) = torch.autograd.grad(pushed.square().sum(), x)

    def expected(x: Tensor) -> Tensor:
        J = torch.func.jacrev(cubic)(x)
        return product(J, v).square().sum()

    agrees(found, torch.func.grad(expected)(x.detach()))


def test_hessian_by_nesting() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x**4).sum() + x[0] * x[1] * x[2]

    x = randn(3).requires_grad_()
    gradient = pb.jacobian(loss, x, create_graph=True).matrix()[0]
    agrees(pb.jacobian_of(gradient, x).matrix(), torch.func.hessian(loss)(x.detach()))


def test_third_derivatives() -> None:
    x = randn(3).requires_grad_()
    J = pb.jacobian(lambda x: pb.jacobian(cubic, x).matrix(), x, create_graph=True).dense()
    (found,) = torch.autograd.grad(J.sum(), x)
    agrees(found, torch.func.grad(lambda x: torch.func.jacrev(torch.func.jacrev(cubic))(x).sum())(x.detach()))


def test_gradient_of_module_parameters_through_j() -> None:
    """A penalty on the Jacobian by the input, differentiated by the weights, as double backprop does."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = randn(3)
    pb.jacobian(net, x, create_graph=True).matrix().square().sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def expected(p: dict[str, Tensor]) -> Tensor:
        return torch.func.jacrev(lambda x: torch.func.functional_call(net, p, (x,)))(x).square().sum()

    gradients = torch.func.grad(expected)(parameters)
    assert found[-1] is None or not found[-1].any()  # the last bias does not occur in J
    agrees(found[:-1], list(gradients.values())[:-1])


# --- jacobian_of -------------------------------------------------------------------------------------------------


def test_jacobian_of_against_the_oracle() -> None:
    x, w = randn(4, 3).requires_grad_(), randn(3, 2).requires_grad_()
    y = {"out": torch.tanh(x @ w), "norm": w.norm()}
    torch.manual_seed(0)
    truth = truth_of_graph(y, [x, w])
    _sound(examine_call(lambda strategy: pb.jacobian_of(y, (x, w), strategy=strategy), truth, [x, w]))


def test_jacobian_of_an_intermediate_result() -> None:
    x = randn(3, 3).requires_grad_()
    hidden = x.exp()
    y = hidden @ hidden
    torch.manual_seed(0)
    truth = truth_of_graph(y, [hidden])
    _sound(examine_call(lambda strategy: pb.jacobian_of(y, hidden, strategy=strategy), truth, []))


def test_warnings_of_the_peers_do_not_leak() -> None:
    """vmap's performance warnings are Pullback's to silence: an operator without a batching rule."""
    x = randn(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        J = pb.jacobian(lambda x: torch.take(x, torch.tensor([0, 5])), x).matrix()
    assert J.nonzero().tolist() == [[0, 0], [1, 5]]
