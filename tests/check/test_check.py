"""``pb.check``: right functions pass, wrong ones fail at the right place, and nothing is changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pullback.check.door import check
from pullback.check.report import Report
from pullback.errors import ArgumentError, ValueMismatch


def cubed(backward: Callable[[Tensor, Tensor], Tensor | None], forward: Callable[[Tensor], Tensor] = lambda x: x**3):
    """A Function with the backward given, of x and the cotangent."""

    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor | None:
            return backward(ctx.saved_tensors[0], g)

    return Cubed


def quick(f: Any, *inputs: Any, **options: Any) -> Report:
    return check(f, *inputs, behaviours=False, **options)


def test_right_functions_pass() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    assert quick(torch.sin, x, order=2)
    assert quick(lambda x: x.softmax(1), x, order=2)
    assert quick(cubed(lambda x, g: 3 * x**2 * g), x, order=2)
    assert quick(lambda z: z.abs() * z.conj(), torch.randn(4, dtype=torch.complex64), order=2)
    assert quick(lambda tree, k: {"a": tree["x"] * k, "b": [tree["y"].sum()]}, {"x": x, "y": x}, 3)


@pytest.mark.parametrize("size", [1, 5, 400, 30_000])
def test_one_wrong_entry_is_found(size: int) -> None:
    """A single entry among many, by bisection where there are many."""
    wrong = size * 2 // 3

    def backward(x: Tensor, g: Tensor) -> Tensor:
        result = 3 * x**2 * g
        result[wrong] *= 1.5
        return result

    report = quick(cubed(backward), torch.linspace(1, 2, size))
    (finding,) = report.failures
    assert finding.entries[0].output_index == (wrong,)
    assert finding.entries[0].input_index == (wrong,)
    assert finding.entries[0].ratio == pytest.approx(1.5, rel=1e-6)


def test_the_pair_that_is_wrong_is_named() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x, w)
            return x @ w, x + 1

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g @ w.mT + h, x.mT @ g * 2

    (finding,) = quick(Product, torch.randn(3, 4), torch.randn(4, 2)).failures
    assert (finding.output, finding.input) == ("output[0]", "argument 1")
    assert all(entry.ratio == pytest.approx(2, rel=1e-6) for entry in finding.entries)


def test_a_gradient_that_vanishes_under_sum_is_seen() -> None:
    """The columns of softmax's Jacobian add up to 0, so that a probe of ones would see nothing."""
    assert not quick(cubed(lambda x, g: torch.zeros_like(g), lambda x: x.softmax(0)), torch.randn(5))


def test_a_detached_path_is_seen() -> None:
    def half(x: Tensor) -> Tensor:
        return x * x.detach()

    assert not quick(half, torch.ones(3))
    report = quick(lambda x: x.detach() * 2, torch.ones(3))
    assert [finding.name for finding in report.failures][:1] == ["detached path"]
    assert not quick(cubed(lambda x, g: None), torch.ones(3))


def test_a_small_input_beside_a_large_one_is_seen() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return 1e6 * x + 1e-6 * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return 1e6 * g, 2e-6 * g

    x = torch.ones(3, dtype=torch.float64)
    (finding,) = quick(Scaled, x, 1000 * x).failures
    assert finding.input == "argument 1"


def test_a_forgotten_conjugate() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    assert "conjugate" in quick(Square, torch.randn(3, dtype=torch.complex128)).failures[0].name


def test_a_wrong_jvp_is_not_blamed_on_the_backward() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return 3 * t

    (finding,) = quick(Doubled, torch.ones(3)).failures
    assert finding.name == "forward mode is wrong"


def test_second_order() -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x.detach() * x * g

    x = torch.linspace(1, 2, 3)
    assert quick(Half, x)
    failures = quick(Half, x, order=2).failures
    assert any(finding.output.startswith("gradient") and finding.input for finding in failures)


def test_kinks_pass_and_are_told() -> None:
    report = quick(torch.relu, torch.tensor([0.0, 1.0, -1.0]))
    assert report
    assert [finding.name for finding in report.findings] == ["kink"]
    assert quick(lambda x: x.abs().sum(), torch.tensor([0.0, 1.0, -1.0]))
    assert quick(lambda x: x.max(), torch.ones(3))


def test_a_slope_outside_of_a_kink_is_wrong() -> None:
    def backward(x: Tensor, g: Tensor) -> Tensor:
        return torch.where(x == 0, 5.0, x.sign()) * g

    assert not quick(lambda x: cubed(backward, torch.abs).apply(x).sum(), torch.tensor([0.0, 1.0]))
    assert not quick(cubed(backward, torch.abs), torch.tensor([0.0, 1.0]))


def test_no_derivative_at_infinity_is_a_note_and_nan_beside_it_is_wrong() -> None:
    report = quick(torch.sqrt, torch.tensor([0.0, 1.0]))
    assert report
    assert any(finding.name == "gradient not finite" for finding in report.findings)
    assert not quick(lambda x: torch.where(x > 0, x.sqrt(), 0.0), torch.tensor([-1.0, 1.0]))


def test_own_dtype() -> None:
    torch.manual_seed(0)
    x = torch.randn(100)
    line = next(line for line in quick(torch.exp, x).compared if "against float64" in line)
    assert line.startswith("float32 against float64: ")
    assert quick(lambda x: (x @ x.mT).logsumexp(1), torch.randn(20, 30).bfloat16())

    def backward(x: Tensor, g: Tensor) -> Tensor:
        exact = 3 * x**2 * g
        return exact if x.dtype == torch.float64 else exact.bfloat16().to(x)

    (finding,) = quick(cubed(backward), x).failures
    assert finding.name == "loses digits"
    half = quick(lambda x: (x * 1000) ** 2 / 1000, torch.tensor([1.0, 100.0]).half())
    assert [finding.name for finding in half.failures] == ["not finite in its own dtype"]


def test_cancellation_is_reported_as_rounding() -> None:
    x = torch.linspace(1, 1 + 1e-4, 20)
    report = quick(lambda x: ((x - 1) ** 2).log(), x[1:])
    assert report, report


def test_a_function_that_refuses_float64_is_checked_in_its_own() -> None:
    weight = torch.randn(4, 3)
    report = quick(lambda x: x @ weight, torch.randn(2, 4))
    assert report
    assert "in float32, since f refuses float64: expected m1 and m2" in report.compared[0]
    assert not quick(lambda x: cubed(lambda x, g: -g, torch.sin).apply(x @ weight), torch.randn(2, 4))


def test_modules_with_parameters_and_buffers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2))
    x = torch.randn(6, 3)
    report = quick(model, x, order=2)
    assert report
    assert "0.weight" in report.compared[0]
    assert quick(lambda x: model(x), x)
    assert "by 4.weight," in quick(model, x, wrt="4.weight").compared[0]
    assert "by input," in quick(model, x, wrt=0).compared[0]


def test_a_wrong_parameter_of_a_module() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.scale + self.scale.detach()) / 2

    (finding,) = quick(Scale(), torch.randn(2, 3)).failures
    assert finding.input == "scale"


def test_nothing_is_changed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x = torch.randn(6, 3, requires_grad=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    numbers, state, other = x.detach().clone(), torch.get_rng_state(), random.getstate()
    check(model, x, order=2)
    check(lambda x: model(x.mul(1).mul_(2)), x)
    assert torch.equal(x, numbers)
    assert x.grad is None
    assert x.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == other
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_inputs_that_require_grad_come_first() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    assert "by a," in quick(lambda a, b: a * b, a, b).compared[0]
    assert "by a, b," in quick(lambda a, b: a * b, a.detach(), b).compared[0]
    assert "by b," in quick(lambda a, b: a * b, a, b, wrt=1).compared[0]


def test_an_output_without_a_graph_is_a_constant() -> None:
    report = quick(lambda x: (x * 2, x.detach().mean()), torch.ones(3))
    assert report
    assert [finding.name for finding in report.findings] == ["output without a graph"]


def test_empty_inputs() -> None:
    report = quick(torch.sin, torch.ones(0, 3))
    assert report
    assert "nothing to compare" in str(report)


def test_a_function_that_differentiates_inside() -> None:
    def slope(x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.requires_grad_()
        return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0]

    assert quick(slope, torch.linspace(0.1, 1, 4))


def test_tolerances() -> None:
    slightly = cubed(lambda x, g: 3 * (1 + 1e-4) * x**2 * g)
    x = torch.linspace(1, 2, 5)
    assert not quick(slightly, x)
    assert quick(slightly, x, rtol=1e-3)
    assert quick(slightly, x, atol=1e-1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: check(3, x), ArgumentError, "f is not a function"),
        (lambda x: check(torch.sin), ArgumentError, "there is no floating-point tensor to differentiate by"),
        (lambda x: check(torch.sin, x.int()), ArgumentError, "there is no floating-point tensor to differentiate by"),
        (lambda x: check(lambda x: 3.0, x), ArgumentError, "f returns no floating-point tensor"),
        (lambda x: check(lambda x: x.argmax(), x), ArgumentError, "a tensor of torch.int64"),
        (lambda x: check(torch.sin, x, order=3), ValueMismatch, "there is no such order"),
        (lambda x: check(torch.sin, x, rtol=-1.0), ValueMismatch, "rtol is no tolerance"),
        (lambda x: check(torch.sin, x, wrt=2), ValueMismatch, "wrt counts beyond the arguments"),
        (lambda x: check(torch.sin, x, wrt=1.5), ArgumentError, "wrt is an argument's index or parameter names"),
        (lambda x: check(nn.Linear(3, 1), x, wrt="w"), ValueMismatch, "there is no such parameter"),
        (lambda x: check(torch.sin, x.to_sparse()), ArgumentError, "is not a strided tensor"),
    ],
)
def test_bad_arguments(call: Callable[[Tensor], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.ones(3))


def test_an_exception_of_f_comes_through_with_a_note() -> None:
    def f(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        check(f, torch.ones(3))
    assert "raised by f" in "".join(caught.value.__notes__)


def test_against_gradcheck_on_random_functions() -> None:
    """The verdict is gradcheck's, on small functions whose backward is right or off by some factor."""
    generator = torch.Generator().manual_seed(0)
    outer = [torch.sin, torch.tanh, torch.exp, lambda x: x.softmax(-1), lambda x: x.cumsum(0), lambda x: x @ x.mT]
    for number in range(40):
        factor = [1.0, 1.0, 0.5, -1.0, 1.01][number % 5]
        x = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        inner = cubed(lambda x, g, factor=factor: factor * 3 * x**2 * g)
        f = outer[number % len(outer)]

        def composed(x: Tensor, f: Any = f, inner: Any = inner) -> Tensor:
            return f(inner.apply(x) / 10)

        expected = torch.autograd.gradcheck(composed, (x,), raise_exception=False)
        assert bool(quick(composed, x)) == expected == (factor == 1.0), (number, factor)


class ThreeGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g, g, g


class ChangesWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].detach().mul_(2)


@pytest.mark.parametrize(
    ("function", "count", "names"),
    [
        (ThreeGradients, 2, {"the backward raises", "wrong number of gradients"}),
        (ChangesWhatItSaved, 1, {"the backward raises", "backward modifies its input"}),
    ],
)
def test_a_backward_that_raises_is_a_finding(function, count, names):
    inputs = [torch.rand(4) for _ in range(count)]
    report = check(function.apply, *inputs)
    assert not report
    assert names <= {finding.name for finding in report.findings}


def test_what_f_itself_raises_is_the_users_to_see():
    def f(x):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        check(f, torch.rand(3))
