"""Randomness, buffers and flags are as after one evaluation, whatever was asked of the Jacobian."""

import copy
import functools

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import GraphError


def everything(J):
    """Ask for everything that runs passes, in both modes."""
    m, n = J.shape
    J.matrix()
    J.rows([0, m - 1])
    J.columns([0, n - 1])
    J.diagonal()
    J @ torch.ones(n)
    J @ torch.ones(n, 3)
    J.T @ torch.ones(m)
    J.T @ torch.ones(m, 2)


def test_f_is_evaluated_once_for_all_reverse_passes():
    calls = []

    def f(x):
        calls.append(1)
        return x.sin().cumsum(0)

    J = pb.jacobian(f, torch.ones(3), strategy="rows")
    J.T @ torch.ones(3)
    J.T @ torch.ones(3, 2)
    J.matrix()
    J.rows(1)
    assert len(calls) == 1


def test_dropout_draws_one_mask_for_all_passes():
    dropout, x = nn.Dropout(0.5), torch.randn(60)
    state = torch.get_rng_state()
    expected = dropout(x)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    J = pb.jacobian(dropout, x)
    mask = (expected != 0) * 2.0
    torch.testing.assert_close(J.value, expected)
    everything(J)
    torch.testing.assert_close(J.matrix(), mask.diag())
    torch.testing.assert_close(J @ torch.ones(60), mask)
    torch.testing.assert_close(J.columns(range(60)), mask.diag())
    assert torch.equal(torch.get_rng_state(), after)


def test_the_generator_moves_as_by_one_evaluation():
    def f(x):
        return x * torch.rand(3)

    state = torch.get_rng_state()
    f(torch.ones(3))
    once = torch.get_rng_state()
    torch.set_rng_state(state)
    everything(pb.jacobian(f, torch.ones(3)))
    assert torch.equal(torch.get_rng_state(), once)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.python_calls = 0

    def forward(self, x):
        self.calls += 1
        self.python_calls += 1
        return x**2


@pytest.mark.parametrize("wrap", ["module", "lambda", "partial", "method", "list"])
def test_buffers_and_attributes_are_as_after_one_evaluation(wrap):
    module = nn.Sequential(nn.BatchNorm1d(3), Counter())
    reference = copy.deepcopy(module)
    x = torch.randn(5, 3)
    reference(x)
    held = [module]
    f = {
        "module": module,
        "lambda": lambda x: module(x),
        "partial": functools.partial(lambda m, x: m(x), module),
        "method": module.forward,
        "list": lambda x: held[0](x),
    }[wrap]
    everything(pb.jacobian(f, x))
    torch.testing.assert_close(dict(module.state_dict()), dict(reference.state_dict()))
    assert module[1].python_calls == 1


def test_wrt_parameters_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    reference = copy.deepcopy(module)
    x = torch.randn(5, 3)
    reference(x)
    before = {name: id(parameter) for name, parameter in module.named_parameters()}
    J = pb.jacobian(module, x, wrt="parameters")
    J.dense()
    J @ torch.ones(J.shape[1])
    J.columns([0, 1])
    torch.testing.assert_close(dict(module.state_dict()), dict(reference.state_dict()))
    assert {name: id(parameter) for name, parameter in module.named_parameters()} == before
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_flags_and_grads_are_not_touched(training):
    module = nn.Linear(3, 2).train(training)
    x = torch.randn(4, 3)
    x.grad = None
    w = torch.randn(4, 2, requires_grad=True)
    w.grad = torch.ones(4, 2)
    everything(pb.jacobian(lambda x: module(x) * w, x))
    assert module.training is training
    assert not x.requires_grad
    assert x.grad is None
    assert torch.equal(w.grad, torch.ones(4, 2))
    assert all(parameter.grad is None for parameter in module.parameters())


def test_an_input_that_f_writes_on_is_not_changed():
    def f(x):
        x.mul_(2)
        return x.sin()

    x = torch.randn(3)
    before = x.clone()
    J = pb.jacobian(f, x)
    everything(J)
    assert torch.equal(x, before)
    torch.testing.assert_close(J.matrix(), (2 * (2 * x).cos()).diag())
    torch.testing.assert_close(J @ torch.ones(3), 2 * (2 * x).cos())
    tangent = torch.ones(3)
    J @ tangent
    assert torch.equal(tangent, torch.ones(3))


@pytest.mark.parametrize("ask", [lambda J: J @ torch.ones(3), lambda J: J.T @ torch.ones(3), lambda J: J.matrix()])
def test_an_input_changed_afterwards_is_noticed(ask):
    x = torch.ones(3)
    J = pb.jacobian(lambda x: x**2, x)
    x.add_(1)
    with pytest.raises(GraphError) as caught:
        ask(J)
    assert "changed in place" in caught.value.what
    assert "x.clone()" in caught.value.fix


def test_gradient_modes_around_the_call_do_not_matter():
    x = torch.randn(3)
    with torch.no_grad():
        torch.testing.assert_close(pb.jacobian(torch.sin, x).matrix(), x.cos().diag())
        torch.testing.assert_close(pb.jacobian(torch.sin, x) @ x, x.cos() * x)
    with torch.inference_mode():
        y = x * 2
        J = pb.jacobian(torch.sin, y)
        everything(J)
        matrix = J.matrix()
    torch.testing.assert_close(matrix.clone(), (2 * x).cos().diag())


def test_autocast_of_the_evaluation_holds_for_forward_passes():
    module = nn.Linear(4, 4)
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        J = pb.jacobian(module, x)
    assert J.value.dtype == torch.bfloat16
    pushed = J @ x
    assert pushed.dtype == torch.bfloat16
    torch.testing.assert_close(pushed.float(), (x @ module.weight.T).detach(), rtol=3e-2, atol=3e-2)


def test_a_closure_over_the_tensor_asked_for_is_found():
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    J = pb.jacobian(lambda w: module(x), module.weight)
    with pytest.raises(GraphError) as caught:
        J.matrix()
    assert "closes over" in caught.value.what
    assert "w (2, 3)" in caught.value.got
    assert "wrt='parameters'" in caught.value.fix
    plain = torch.ones(3)
    with pytest.raises(GraphError, match="closes over"):
        pb.jacobian(lambda p: plain**2, plain) @ plain


def test_a_closure_beside_the_argument_is_said():
    w = torch.ones(3, requires_grad=True)
    J = pb.jacobian(lambda p: p * w, w)
    torch.testing.assert_close(J.matrix(), torch.eye(3))
    assert any("beside its argument" in note for note in J.plan().notes)


def test_an_unused_input_and_a_dead_output_give_zeros_and_are_said():
    def f(a, b):
        return {"y": a * 2, "index": a.argmax(), "cut": a.detach()}

    J = pb.jacobian(f, torch.ones(3), torch.ones(2), wrt=(0, 1))
    dense = J.dense()
    assert not dense["y"][1].any()
    assert dense["index"][0].shape == (3,)
    assert not dense["cut"][0].any()
    notes = " ".join(J.plan().notes)
    assert "do not depend on b" in notes
    assert "output['index'] carries no graph (int64)" in notes
    assert "output['cut'] carries no graph (float32)" in notes
    pushed = J @ torch.ones(5)
    torch.testing.assert_close(pushed, torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("f", [lambda x: x.argmax(), lambda x: x.detach(), lambda x: torch.ones(2)])
def test_strict_raises_instead_of_giving_zeros(f):
    with pytest.raises(GraphError) as caught:
        pb.jacobian(f, torch.ones(3), strict=True)
    assert "strict=False gives zeros" in caught.value.fix


def test_strict_raises_for_an_unused_input():
    with pytest.raises(GraphError, match="do not depend on b"):
        pb.jacobian(lambda a, b: a, torch.ones(2), torch.ones(2), wrt=(0, 1), strict=True)


@pytest.mark.gpu
def test_cuda_dropout_draws_one_mask():
    dropout, x = nn.Dropout(0.5), torch.randn(60, device="cuda")
    J = pb.jacobian(dropout, x)
    mask = (J.value != 0) * 2.0
    torch.testing.assert_close(J.matrix(), mask.diag())
    torch.testing.assert_close(J @ torch.ones(60, device="cuda"), mask)


class Old(torch.autograd.Function):
    """A Function in the old style: forward mode cannot go through it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


@pytest.mark.parametrize(
    "ask",
    [lambda J: J @ torch.eye(3), lambda J: J.columns(range(3)), lambda J: J.matrix()],
    ids=["stack", "columns", "matrix"],
)
def test_a_branch_without_forward_mode_after_one_with(ask):
    """What was learned of one branch of f does not stand in the way on another."""

    def f(x):
        return x.sin() if x.sum() > 0 else Old.apply(x)

    x = torch.ones(3)
    assert torch.allclose(pb.jacobian(f, x, strategy="columns") @ x, x.cos())
    J = pb.jacobian(f, -x, strategy="columns")
    torch.testing.assert_close(ask(J), -2 * torch.eye(3))
    assert torch.allclose(pb.jacobian(f, -x) @ x, -2 * x)


def test_a_parameter_that_the_module_does_not_use_has_zero_derivatives():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    J = pb.jacobian(Half(), torch.randn(4, 3), wrt="parameters")
    dense = J.dense()
    assert dense["used.weight"].any()
    assert not dense["unused.weight"].any()
    assert dense["unused.weight"].shape == (4, 2, 2, 3)
    assert any("do not depend on unused.weight" in note for note in J.plan().notes)
    assert (J @ torch.ones(J.shape[1])).shape == (8,)


def test_a_module_that_reaches_around_its_parameter_is_found():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.stale = [self.weight]

        def forward(self, x):
            return x * self.stale[0]

    with pytest.raises(GraphError, match="closes over"):
        pb.jacobian(Around(), torch.ones(3), wrt="parameters").matrix()
