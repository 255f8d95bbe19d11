"""What a function promises besides its numbers: each promise broken once, and kept once."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pullback.check.door import check
from pullback.check.registries import BEHAVIOURS
from tests.check.mutants import numbers, signed

Function = torch.autograd.Function


def named(f: Any, *inputs: Any) -> dict[str, Any]:
    """What a check finds, by name."""
    return {finding.name: finding for finding in check(f, *inputs).findings}


class Square(Function):
    """The right one: it keeps every promise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grad * x


def squares(
    backward: Callable[[Any, Tensor, Tensor], Any], keep: Callable[[Any, Tensor, Tensor], None] | None = None
) -> Any:
    """A square with a backward of its own, ``backward(ctx, grad, x)``."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = x * x
        ctx.save_for_backward(x)
        if keep is not None:
            keep(ctx, x, output)
        return output

    def back(ctx: Any, grad: Tensor) -> Any:
        return backward(ctx, grad, ctx.saved_tensors[0])

    return type("Wrong", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(back)})


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("f", [Square, Square.apply, lambda x: Square.apply(x).sum(), torch.tanh])
def test_a_function_that_keeps_its_promises_has_no_findings(f: Any, shape: tuple[int, ...]) -> None:
    report = check(f, signed(*shape))
    assert report, str(report)
    assert not report.findings, str(report)


def test_a_module_that_keeps_its_promises_has_no_findings_and_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh()).double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    report = check(module, signed(2, 2, 5, 5))
    assert report, str(report)
    assert not report.findings, str(report)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


# Repeatable.


def test_a_function_that_draws_from_torch_is_named_and_passes() -> None:
    found = named(lambda x: x * torch.rand(3, dtype=x.dtype), signed(3))
    assert found["random numbers"].harmless
    assert check(nn.Dropout(0.5), signed(20))


def test_a_function_that_draws_elsewhere_is_random() -> None:
    found = named(lambda x: x * random.random(), signed(3))
    assert not found["random function"].harmless
    assert "two calls with the same inputs differ by" in found["random function"].text


def test_a_function_that_remembers_its_calls_is_random() -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    assert "random function" in named(f, signed(3))


def test_a_backward_that_draws_is_nondeterministic() -> None:
    found = named(squares(lambda ctx, g, x: 2 * g * x * (torch.rand_like(g) < 0.5)), signed(6))
    assert "nondeterministic backward" in found
    assert "so do passes over new graphs" in found["nondeterministic backward"].text


def test_a_backward_that_scales_what_it_keeps() -> None:
    def keep(ctx: Any, x: Tensor, output: Tensor) -> None:
        ctx.factor = torch.full_like(x, 2.0)

    def backward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        found = g * ctx.factor * x
        ctx.factor.mul_(3)
        return found

    found = named(squares(backward, keep), signed(6))
    assert "backward changes what it keeps" in found
    assert "one over a new graph does not" in found["backward changes what it keeps"].text


# In place.


def test_a_function_that_changes_its_input() -> None:
    found = named(lambda x: x.mul_(2).sin(), signed(3))
    assert not found["modifies its input"].harmless
    assert "is changed in place, by up to" in found["modifies its input"].text


def test_a_function_class_that_changes_its_input_without_mark_dirty() -> None:
    class Careless(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    class Marked(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    assert "modifies an input without mark_dirty" in named(Careless, signed(3))
    assert not {"modifies an input without mark_dirty", "modifies its input"} & set(named(Marked, signed(3)))


def test_a_backward_that_changes_its_input() -> None:
    found = named(squares(lambda ctx, g, x: g * x.data.mul_(2)), signed(4))
    assert "backward modifies its input" in found
    assert "are not the same after a backward pass" in found["backward modifies its input"].text


@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_that_changes_the_incoming_gradient(inside: bool) -> None:
    wrong = squares(lambda ctx, g, x: g.mul_(2) * x)
    found = named((lambda x: wrong.apply(x.sin()).cos()) if inside else wrong, signed(4))
    assert "backward modifies the incoming gradient" in found
    assert "the backward of Wrong changes gradient 0 in place" in found["backward modifies the incoming gradient"].text


# Layouts.


def test_a_gradient_that_is_taken_to_be_contiguous() -> None:
    refuses = squares(lambda ctx, g, x: 2 * g.view(-1).view(x.shape) * x)
    found = [each.text for each in check(refuses, signed(3, 4)).findings]
    assert any("the incoming gradient is transposed in memory: view size is not compatible" in each for each in found)
    refuses = squares(lambda ctx, g, x: 2 * g.copy_(g.clone()) * x)
    found = [each.text for each in check(refuses, signed(3, 4)).findings]
    assert any("is expanded (that of sum().backward() is)" in each for each in found)
    wrong = squares(lambda ctx, g, x: 2 * g.as_strided(g.shape, (4, 1)) * x if g.stride() != (0, 0) else 2 * g * x)
    found = named(wrong, signed(3, 4))
    assert "transposed in memory" in found["wrong for a gradient that is not contiguous"].text


@pytest.mark.parametrize("shape", [(3, 4), (6,), (2, 3, 4, 4)])
def test_an_input_that_is_taken_to_be_contiguous(shape: tuple[int, ...]) -> None:
    class Raw(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            plain = torch.empty(x.shape).stride()
            return 2 * g * x.as_strided(x.shape, plain) if x.stride()[-1] else 2 * g * x

    found = named(Raw, signed(*shape))
    assert not found["wrong for an input that is not contiguous"].harmless
    assert named(lambda x: x.view(-1), signed(3, 4))["refuses an input that is not contiguous"].harmless


def test_an_expanded_input() -> None:
    class Raw(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    wrong = type("Stride", (Raw,), {"forward": staticmethod(lambda ctx, x: x * (3 if 0 in x.stride() else 2))})
    found = named(wrong, signed(3, 4))
    assert "for an input that is expanded results differ" in found["wrong for an input that is not contiguous"].text
    assert "wrong for an input that is not contiguous" not in named(Raw, signed(3, 4))


def test_an_empty_batch() -> None:
    def backward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        assert x.shape[0], "no rows"
        return 2 * g * x

    found = named(squares(backward), signed(3, 4))
    assert "no rows" in found["backward fails on an empty batch"].text
    assert not found["backward fails on an empty batch"].harmless


# Custom Functions.


def test_a_vmap_rule_that_is_wrong_or_fails() -> None:
    def wrong(info: Any, dims: tuple[int, ...], x: Tensor) -> tuple[Tensor, int]:
        return Square.apply(x) + torch.arange(info.batch_size).to(x)[:, None], 0

    def fails(info: Any, dims: tuple[int, ...], x: Tensor) -> tuple[Tensor, int]:
        raise RuntimeError("not written yet")

    for rule, name in ((wrong, "vmap rule is wrong"), (fails, "vmap rule fails")):
        kind = type("Ruled", (Square,), {"generate_vmap_rule": False, "vmap": staticmethod(rule)})
        assert name in named(kind, signed(3))
    right = type("Ruled", (Square,), {"generate_vmap_rule": False, "vmap": staticmethod(lambda i, d, x: (x * x, d[0]))})
    assert not named(right, signed(3))


def test_an_output_or_an_input_saved_on_ctx() -> None:
    def output(ctx: Any, x: Tensor, y: Tensor) -> None:
        ctx.result = y

    def given(ctx: Any, x: Tensor, y: Tensor) -> None:
        ctx.x = x

    found = named(squares(lambda ctx, g, x: 2 * g * x, output), signed(3))
    assert not found["output saved on ctx"].harmless
    assert "Wrong keeps an output as ctx.result: a cycle" in found["output saved on ctx"].text
    found = named(squares(lambda ctx, g, x: 2 * g * ctx.x, given), signed(3))
    assert found["input saved on ctx"].harmless
    assert "ctx.save_for_backward(x)" in found["input saved on ctx"].fix


def test_none_for_an_input_that_needs_a_gradient() -> None:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            _, b = ctx.saved_tensors
            return g * b if ctx.needs_input_grad[0] else None, None

    found = named(Product, signed(3), signed(3, seed=1))
    assert "argument 1" in found["returns None for an input that needs a gradient"].text
    assert not found["detached path"].harmless


def test_gradients_that_nobody_needs() -> None:
    def product(needs: bool) -> Any:
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a * b

        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            a, b = ctx.saved_tensors
            wanted = ctx.needs_input_grad if needs else (True, True)
            return g * b if wanted[0] else None, g * a if wanted[1] else None

        return type("Product", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    found = named(product(needs=False), signed(3), signed(3, seed=1))
    assert found["computes gradients for nothing"].harmless
    assert "argument 0, 1" in found["computes gradients for nothing"].text
    assert not named(product(needs=True), signed(3), signed(3, seed=1))


def test_an_output_that_is_a_view_of_the_input() -> None:
    class Flat(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape
            return x.reshape(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.reshape(ctx.shape)

    found = named(Flat, signed(2, 3))
    assert found["output is a view of an input"].harmless


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, g, x: 2 * g.data * x.data,
        lambda ctx, g, x: torch.from_numpy(2 * g.detach().numpy() * x.detach().numpy()),
        lambda ctx, g, x: 2 * g * x.detach(),
        lambda ctx, g, x: 2 * g * ctx.kept,
    ],
)
def test_a_backward_that_loses_second_derivatives_without_a_word(backward: Callable[..., Tensor]) -> None:
    def keep(ctx: Any, x: Tensor, output: Tensor) -> None:
        ctx.kept = x.detach().clone()

    wrong = squares(backward, keep)
    assert not named(wrong, signed(4))["double backward silently missing"].harmless
    once = type("Once", (wrong,), {"backward": staticmethod(once_differentiable(wrong.backward))})
    assert "double backward silently missing" not in named(once, signed(4))


def test_a_linear_function_has_no_second_derivative_to_lose() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    assert not named(Twice, signed(4))


def test_an_output_that_is_not_used() -> None:
    def split(handle: bool) -> Any:
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return x * x, x.sin()

        def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Tensor:
            (x,) = ctx.saved_tensors
            if handle:
                a, b = (torch.zeros_like(x) if each is None else each for each in (a, b))
            return 2 * a * x + b * x.cos()  # type: ignore[operator]

        return type("Split", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    found = named(split(handle=False), signed(3))
    assert "if only output 0 is used" in found["fails where an output is not used"].text
    assert not named(split(handle=True), signed(3))


def test_a_function_that_fails_under_autocast() -> None:
    class Linear(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            x, w = ctx.saved_tensors
            needs = ctx.needs_input_grad
            return g @ w.mT if needs[0] else None, x.mT @ g if needs[1] else None

    found = named(Linear, signed(2, 3), signed(3, 4))
    assert found["fails under autocast"].harmless
    kind = "cpu"
    safe = type(
        "Safe",
        (Linear,),
        {
            "forward": staticmethod(torch.amp.custom_fwd(Linear.forward, device_type=kind, cast_inputs=torch.float32)),
            "backward": staticmethod(torch.amp.custom_bwd(Linear.backward, device_type=kind)),
        },
    )
    assert not named(safe, signed(2, 3), signed(3, 4))


def test_a_norm_is_nan_at_zero() -> None:
    found = named(lambda x: (x * x).sum().sqrt(), torch.zeros(3, dtype=torch.float64))
    assert not found["NaN at a kink"].harmless
    assert "the gradient by x is NaN at 3 elements; at the first, 0, a random sum" in found["NaN at a kink"].text
    assert check(lambda x: x.norm(), torch.zeros(3, dtype=torch.float64))
    assert check(torch.sqrt, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_nothing_that_was_given_is_changed() -> None:
    x, weight = signed(3, 4).requires_grad_(), numbers(4)
    before, version, state = x.detach().clone(), x._version, torch.get_rng_state()
    check(squares(lambda ctx, g, y: 2 * g * y * torch.rand_like(g)), x)
    check(lambda a, b: (a * b).mul_(torch.rand(4)), x, weight)
    assert torch.equal(x, before)
    assert x._version == version
    assert x.grad is None
    assert weight._version == 0
    assert torch.equal(state, torch.get_rng_state())


def test_every_behaviour_says_what_it_looks_at() -> None:
    assert all((inspect.getdoc(look) or "").endswith(".") for look in BEHAVIOURS.all().values())


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    x = signed(3, 4).to("cuda", torch.float32)
    assert not check(Square, x).findings
    assert "missing factor 2" in named(squares(lambda ctx, g, y: g * y), x)
    assert "nondeterministic backward" in named(squares(lambda ctx, g, y: 2 * g * y * (torch.rand_like(g) < 0.5)), x)
    assert "detached path" in named(lambda y: y * y.sum().detach(), signed(5).cuda())
