"""Blame: the operation that made a Jacobian wrong is named with its line, and the search leaves no trace."""

import importlib
import re
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import PullbackWarning, VerificationError
from pullback.executors.local import Route
from pullback.jacobian import blame as module

X = torch.linspace(0.2, 1.9, 12, dtype=torch.float64).reshape(4, 3)
CENTERS = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)

BATCHED = Route("reverse, batched by vmap", lambda seeds: seeds, at_once=True)
FORWARD = Route("forward", lambda tangents: tangents, at_once=False)
FORWARD_BATCHED = Route("forward, batched by vmap", lambda tangents: tangents, at_once=True)
TWICE = Route("reverse-over-reverse", lambda tangents: tangents, at_once=False)


def blamed(f, x, *routes, **options):
    return module.blame(pb.jacobian(f, x, **options)._lin, routes)


def line_of(text):
    """The number of the one line of this file that holds a mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [k for k, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


def deep(x):
    x = (x @ x.mT @ x).tanh()
    for _ in range(3):
        x = x.sin() * x.cumsum(0)
    d = torch.cdist(x, CENTERS)  # the distance
    for _ in range(3):
        d = d.cos() + d.softmax(1)
    return d


def test_the_one_wrong_rule_among_many_right_ones():
    name = f"the batching rule of aten::_cdist_backward (test_blame.py:{line_of('the distance')}) is wrong"
    assert blamed(deep, X, BATCHED) == name
    assert blamed(deep, X, FORWARD) == ""  # it has none
    assert blamed(lambda x: x.sin().cumsum(0).softmax(1), X, BATCHED, FORWARD, FORWARD_BATCHED, TWICE) == ""


def test_the_warning_and_the_error_carry_it():
    J = pb.jacobian(deep, X, strategy="rows")
    with pytest.warns(PullbackWarning) as caught:
        J.dense()
    (text,) = [str(each.message) for each in caught]
    assert re.fullmatch(
        r"rows \(reverse, batched by vmap\) disagrees with a plain reverse pass by x, relative error \S+ where 1e-09 "
        r"is allowed: the batching rule of aten::_cdist_backward \(test_blame.py:\d+\) is wrong; Pullback takes "
        r"instead: reverse, one pass at a time",
        text,
    )
    assert any("aten::_cdist_backward" in note for note in J.plan().notes)
    with pytest.raises(VerificationError, match="aten::_cdist_backward") as error:
        pb.jacobian(lambda x: deep(x), X, strategy="rows", strict=True).dense()
    assert error.value.fix == "strict=False takes the next way: reverse, one pass at a time"


def test_a_graph_that_exists_knows_no_lines():
    leaf = X.clone().requires_grad_()
    J = pb.jacobian_of(deep(leaf), leaf)
    assert module.blame(J._lin, [BATCHED]) == "the batching rule of aten::_cdist_backward is wrong"
    assert module.blame(J._lin, [FORWARD]) == ""


def with_function(jvp=None, vmap=None):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(g, x):
            return g * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def vmap(info, in_dims, g, x):
            return vmap(g.movedim(in_dims[0], 0) * x), 0

    class Outer(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return Inner.apply(g, y) if vmap else g * y

        @staticmethod
        def jvp(ctx, tangent):
            return jvp(tangent * ctx.saved_tensors[0])

    def f(x):
        y = x.sin() * 2
        z = Outer.apply(y)  # the custom function
        return z.cos() / 2

    return f


def test_custom_functions():
    line = line_of("the custom function")
    wrong = blamed(with_function(vmap=lambda g: g.roll(1, 0)), X, BATCHED)
    assert wrong == f"the backward of Outer under vmap (test_blame.py:{line}) is wrong"
    wrong = blamed(with_function(jvp=lambda t: -t), X, FORWARD)
    assert wrong == f"the forward formula of Outer (test_blame.py:{line}) disagrees with its backward"
    wrong = blamed(with_function(jvp=lambda t: t / 0), X, FORWARD)
    assert wrong == f"the tangent of Outer (test_blame.py:{line}) is infinite or NaN, its gradient is not"
    wrong = blamed(with_function(jvp=lambda t: 0 * t), X, FORWARD)
    assert wrong == f"forward mode gives zeros for Outer (test_blame.py:{line}), a reverse pass does not"


def test_no_grad_and_hooks_are_causes_of_their_own():
    def f(x):
        with torch.no_grad():
            c = x.exp()  # without a gradient
        return c * x

    line = line_of("without a gradient")
    expected = (
        f"torch.no_grad() stops reverse passes at aten::exp (test_blame.py:{line}), and forward mode does not see it"
    )
    assert blamed(f, X, FORWARD) == expected

    def g(x):
        y = x.exp()
        if y.requires_grad:
            y.register_hook(torch.neg)  # the hook
        return y

    text = blamed(g, X, FORWARD)
    assert text.startswith(f"a hook (test_blame.py:{line_of('the hook')}) changes the gradient that reaches aten::exp")


def test_numbers_that_are_not_finite():
    def f(x):
        y = (x - X[0, 0]).log()  # minus infinity
        return y * 2

    text = blamed(f, X, TWICE)
    assert text == f"aten::log (test_blame.py:{line_of('minus infinity')}) gives infinite or NaN numbers"

    def g(x):
        return (x - X[0, 0]).abs().sqrt()  # finite, with an infinite gradient

    text = blamed(g, X, TWICE)
    line = line_of("finite, with an infinite gradient")
    assert text == f"the gradient that SqrtBackward0 (test_blame.py:{line}) passes on is infinite or NaN"


def test_in_place_writes_do_not_confuse_it():
    def f(x):
        y = x.sin()
        y.mul_(x)
        y[0] = x[1].sin()
        z = torch.cdist(y, CENTERS)  # after writes
        out = torch.zeros_like(z)
        out[1:] = z[1:]
        return out

    text = f"the batching rule of aten::_cdist_backward (test_blame.py:{line_of('after writes')}) is wrong"
    assert blamed(f, X, BATCHED) == text

    def writes_its_input(x):
        x.mul_(2)
        return torch.cdist(x, CENTERS)  # on its input

    text = f"the batching rule of aten::_cdist_backward (test_blame.py:{line_of('on its input')}) is wrong"
    assert blamed(writes_its_input, X.clone(), BATCHED) == text


def test_it_leaves_no_trace():
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.BatchNorm1d(4, dtype=torch.float64), nn.Dropout(0.5))
    calls = []

    def f(x):
        calls.append(1)
        return torch.cdist(model(x), torch.randn(2, 4, dtype=torch.float64))

    x = X.clone().requires_grad_()
    J = pb.jacobian(f, x)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state, value = torch.get_rng_state(), J.value.clone()
    for route in (BATCHED, FORWARD, FORWARD_BATCHED, TWICE):
        module.blame(J._lin, [route])
    assert len(calls) > 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(J.value, value)
    assert torch.is_grad_enabled()
    assert "aten::_cdist_backward" in module.blame(J._lin, [BATCHED])


def test_a_function_that_cannot_be_watched_keeps_its_secret():
    """The warning is then as long as it was, and the numbers are right."""
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("only once")
        return torch.cdist(x, CENTERS)

    J = pb.jacobian(f, X, strategy="rows")
    with pytest.warns(PullbackWarning, match="is allowed; Pullback takes instead"):
        found = J.dense()
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(lambda x: torch.cdist(x, CENTERS), X))


def test_it_gives_up_when_it_takes_too_long(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 0.0)
    assert blamed(deep, X, BATCHED) == ""

    def slow(x):
        time.sleep(0.01)
        return deep(x)

    assert blamed(slow, X, BATCHED, FORWARD, TWICE) == ""


def test_what_is_too_large_is_left_out(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 4)
    assert blamed(deep, X, BATCHED) == ""


def test_it_costs_nothing_where_all_is_well(monkeypatch):
    def unexpected(*args):
        raise AssertionError("nobody is to blame")

    passes = importlib.import_module("pullback.jacobian.passes")
    monkeypatch.setattr(passes, "blame", unexpected)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PullbackWarning)
        J = pb.jacobian(lambda x: x.sin() @ x.mT, X)
        for build in (lambda J: J.dense(), lambda J: J @ X, lambda J: J.columns(range(12)), lambda J: J.sparse()):
            build(J)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_right_functions_of_other_dtypes_are_not_blamed(dtype):
    def f(x):
        y = (x @ x.mT).sin() * x.sum()
        return (y.cumsum(0) * y).exp() / 8

    for route in (BATCHED, FORWARD, FORWARD_BATCHED, TWICE):
        assert blamed(f, (X / 4).to(dtype), route) == ""
