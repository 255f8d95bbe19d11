"""The causes, each on evidence made by plain reverse mode and plain differences."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import CAUSES, causes
from tests.check.mutants import MUTANTS, Mutant, function, numbers, signed

_NAMES = "xyzw"


def named(evidence: Evidence) -> Cause | None:
    """The first cause that explains the evidence."""
    return next((found for each in causes() if (found := each(evidence)) is not None), None)


def reverse(f: Callable[..., Any], inputs: tuple[Tensor, ...], which: int) -> Callable[[], Tensor]:
    """The rows of the Jacobian by one input, a backward pass for each, over one graph: each call runs them again."""
    given = [x.clone().requires_grad_() for x in inputs]
    output = f(*given).reshape(-1)

    def block() -> Tensor:
        rows = []
        for seed in torch.eye(output.numel(), dtype=output.dtype):
            (grad,) = torch.autograd.grad(output, given[which], seed, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(given[which]) if grad is None else grad)
        return torch.stack(rows).reshape(output.numel(), -1).detach()

    return block


def differences(f: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """The same by central differences of fourth order, and how far those of two steps are apart."""

    def along(direction: complex, column: int, step: float) -> Tensor:
        quotient = torch.zeros_like(f(at).real)
        for weight, move in ((8, 1), (-8, -1), (-1, 2), (1, -2)):
            moved = at.clone()
            moved[column] += move * step * direction
            quotient = quotient + weight / (12 * step) * f(moved).real
        return quotient

    def block(step: float) -> Tensor:
        columns = []
        for column in range(at.numel()):
            slope = along(1, column, step)
            columns.append(torch.complex(slope, along(1j, column, step)) if at.is_complex() else slope)
        return torch.stack(columns, 1)

    fine, coarse = block(1e-3), block(2e-3)
    return fine, (fine - coarse).abs() / 8 + 1e-11


def every_evidence(f: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Evidence]:
    """The evidence for each input of f, right or wrong."""
    every = []
    for which, x in enumerate(inputs):

        def along(flat: Tensor, which: int = which, x: Tensor = x) -> Tensor:
            with torch.no_grad():
                given = [each.clone() for each in inputs]
                given[which] = flat.reshape(x.shape)
                return f(*given).detach().reshape(-1)

        at = x.reshape(-1).clone()
        output = f(*[given.clone() for given in inputs]).detach()
        numeric, error = differences(along, at)
        rerun = reverse(f, inputs, which)
        every.append(
            Evidence(
                _NAMES[which], "out", tuple(x.shape), tuple(output.shape), rerun(), numeric, error, at,
                output.reshape(-1), along, rerun,
            )
        )  # fmt: skip
    return every


def evidences(f: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Iterator[Evidence]:
    """The wrong ones only, each with the others."""
    every = every_evidence(f, inputs)
    for evidence in every:
        gap = (evidence.ours - evidence.numeric).abs()
        if not bool((gap <= 10 * evidence.error + 1e-7 * evidence.numeric.abs().max()).all()):
            yield replace(evidence, others=tuple(other for other in every if other is not evidence))


def causes_of(f: Callable[..., Any], *inputs: Tensor) -> list[Cause | None]:
    """The cause for each input of which the gradient is wrong."""
    return [named(evidence) for evidence in evidences(f, inputs)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_told_apart_from_its_twin_and_its_cause_is_named(mutant: Mutant) -> None:
    wrong = causes_of(mutant.wrong, *mutant.inputs)
    assert wrong, "the wrong one is not caught"
    assert mutant.cause in [cause and cause.name for cause in wrong]
    assert all(cause is None or not cause.harmless for cause in wrong)
    assert causes_of(mutant.right, *mutant.inputs) == []


# What is no mistake.


@pytest.mark.parametrize(
    ("f", "at"),
    [
        (torch.abs, [0.0, 1.0, -2.0]),
        (torch.relu, [0.0, 1.0, -2.0, 0.0]),
        (lambda x: x.amax(), [3.0, 1.0, 3.0]),
        (lambda x: x.clamp(-1, 1), [1.0, 0.5, -1.0]),
        (lambda x: torch.maximum(x, x.flip(0)) * x, [2.0, 1.0, 2.0]),
        (lambda x: nnf.relu6(x), [6.0, 6.0, 7.0]),
    ],
)
def test_a_kink_is_harmless(f: Callable[..., Any], at: list[float]) -> None:
    found = causes_of(f, torch.tensor(at, dtype=torch.float64))
    assert all(cause is not None and cause.name == "kink" and cause.harmless for cause in found)


def test_one_wrong_slope_among_many_kinks_is_not_harmless() -> None:
    at = torch.zeros(200, dtype=torch.float64)
    at[150] = 1

    def backward(g: Tensor, s: Any, y: Tensor) -> Tensor:
        return g * torch.where(s[0] == 1, 7.0, 0.0)

    (cause,) = causes_of(function(torch.abs, backward), at)
    assert cause is None or not cause.harmless
    (cause,) = causes_of(torch.relu, torch.zeros(200, dtype=torch.float64))
    assert cause is not None
    assert cause.name == "kink"
    assert "200 entries at a kink" in cause.text


def test_a_kink_is_told_with_the_slopes_of_both_sides() -> None:
    (cause,) = causes_of(torch.relu, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert cause is not None
    assert cause.text == (
        "1 entry at a kink: d out[0] / d x[0] is 0 from the left and 1 from the right at 0, 0 by the backward, which is"
        " between them"
    )


def test_a_slope_outside_of_a_kink_is_wrong() -> None:
    wrong = function(torch.relu, lambda g, s, y: g * torch.where(s[0] == 0, 3.0, (s[0] > 0).to(g)))
    (cause,) = causes_of(wrong, torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64))
    assert cause is not None
    assert cause.name == "kink handled wrongly"
    assert not cause.harmless
    assert "which is not between them" in cause.text


def test_a_kink_that_is_very_near_is_harmless() -> None:
    (cause,) = causes_of(torch.abs, torch.tensor([1e-6, 1.0], dtype=torch.float64))
    assert cause is not None
    assert cause.name == "kink nearby"
    assert cause.harmless


@pytest.mark.parametrize("f", [torch.floor, lambda x: x + torch.heaviside(x - 1, torch.tensor(0.5).double())])
def test_a_jump_is_a_discontinuity(f: Callable[..., Any]) -> None:
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return f(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * (0.0 if f is torch.floor else 1.0)

    (cause,) = causes_of(Slope.apply, torch.tensor([1.0, 2.5], dtype=torch.float64))
    assert cause is not None
    assert cause.name == "discontinuity"
    assert cause.harmless
    assert "jumps by 1 at x[0] = 1" in cause.text
    assert "grows like 1/h" in cause.text


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_a_function_that_computes_in_low_precision_is_rough(dtype: torch.dtype, name: str) -> None:
    found = causes_of(lambda x: (x.to(dtype) * 2).sin().double(), numbers(4))
    assert found
    assert all(cause is not None and cause.harmless for cause in found)
    assert all(cause.name == f"{name} round-off" for cause in found if cause is not None)


def test_a_wrong_gradient_is_not_excused_by_low_precision() -> None:
    wrong = function(lambda x: (x.float() ** 2).double(), lambda g, s, y: g * s[0])
    assert all(cause is None or not cause.harmless for cause in causes_of(wrong, numbers(4)))


def test_a_backward_with_a_float32_constant_is_rounded() -> None:
    rounded = function(lambda x: 0.1 * x, lambda g, s, y: g * torch.tensor(0.1, dtype=torch.float32).double())
    (cause,) = [named(each) for each in every_evidence(rounded, (signed(3),))]
    assert cause is not None
    assert cause.name == "float32 round-off"
    assert cause.harmless
    assert "agrees with the differences to 1.5e-08 of each entry" in cause.text


def test_a_function_that_draws_random_numbers_has_no_derivative() -> None:
    (cause,) = causes_of(lambda x: x * torch.rand(3, dtype=x.dtype), signed(3))
    assert cause is not None
    assert cause.name == "random function"
    assert not cause.harmless


def test_the_gradient_of_a_symmetric_matrix_is_spread_evenly() -> None:
    a = signed(4, 4)
    (cause,) = causes_of(torch.linalg.cholesky, a @ a.mT + torch.eye(4, dtype=torch.float64))
    assert cause is not None
    assert cause.name == "gradient of a symmetric matrix"
    assert cause.harmless


def test_one_of_two_inputs_in_place_of_the_other() -> None:
    wrong = function(lambda a, b: a * b * b, lambda g, s, y: (g * s[0] * s[0], 2 * g * s[0] * s[1]))
    (cause,) = causes_of(wrong, signed(4), signed(4, seed=1))
    assert cause is not None
    assert cause.name == "one value in place of another"
    assert "x² / y² times the differences" in cause.text


# No guesses.


@pytest.mark.parametrize(
    ("output", "given"),
    [
        ((), (1,)),
        ((), ()),
        ((1,), (2,)),
        ((), (5,)),
        ((2,), (2,)),
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((2, 2), (2, 2)),
        ((4, 3), (4, 3)),
    ],
)
def test_random_numbers_have_no_cause(output: tuple[int, ...], given: tuple[int, ...]) -> None:
    for seed in range(40):
        evidence = _drawn(output, given, seed, lambda numeric: torch.randn(numeric.shape, dtype=numeric.dtype))
        assert named(evidence) is None, seed


@pytest.mark.parametrize("kind", ["entry", "row", "column", "diagonal", "half"])
def test_a_part_that_is_random_has_no_cause(kind: str) -> None:
    def change(numeric: Tensor) -> Tensor:
        ours = numeric.clone()
        noise = torch.randn(numeric.shape, dtype=numeric.dtype)
        if kind == "entry":
            ours[1, 2] = noise[1, 2]
        elif kind == "row":
            ours[1] = noise[1]
        elif kind == "column":
            ours[:, 2] = noise[:, 2]
        elif kind == "diagonal":
            ours += torch.diag(noise[0])
        else:
            ours[:3] = noise[:3]
        return ours

    for seed in range(20):
        assert named(_drawn((6,), (6,), seed, change)) is None, seed
        assert named(_drawn((2, 3), (3, 2), seed, change)) is None, seed


def test_a_random_elementwise_slope_has_no_cause() -> None:
    for seed in range(20):
        numeric = torch.diag(signed(6, seed=seed))
        evidence = _drawn((6,), (6,), seed, lambda given: torch.diag(torch.randn(6, dtype=given.dtype)), numeric)
        assert named(evidence) is None, seed


def _drawn(
    output: tuple[int, ...],
    given: tuple[int, ...],
    seed: int,
    change: Callable[[Tensor], Tensor],
    numeric: Tensor | None = None,
) -> Evidence:
    """A linear function with a random matrix, and a changed matrix as its gradient."""
    torch.manual_seed(seed)
    m, n = math.prod(output), math.prod(given)
    matrix = torch.randn(m, n, dtype=torch.float64) if numeric is None else numeric
    at = torch.randn(n, dtype=torch.float64)
    ours = change(matrix)
    return Evidence(
        "x", "out", given, output, ours, matrix, torch.full_like(matrix, 1e-12), at, matrix @ at, lambda x: matrix @ x,
        ours.clone,
    )  # fmt: skip


# The simpler of two.


@pytest.mark.parametrize(
    ("numeric", "ours", "output", "given", "name"),
    [
        # Two elements: twice is their number too.
        ([[1.0, 3.0]], [[2.0, 6.0]], (), (2,), "factor 2 too many"),
        # A rotation: its transpose is its negative off the diagonal.
        ([[0.0, 1.0], [-1.0, 0.0]], [[0.0, -1.0], [1.0, 0.0]], (2,), (2,), "wrong sign"),
        # A purely imaginary derivative has itself with the sign changed as conjugate.
        ([[1j, 2j]], [[-1j, -2j]], (), (2,), "wrong sign"),
        # A permutation of three is its transpose, and shifted.
        ([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
         (3,), (3,), "transposed"),
        # All zeros is also a mask, a part, and a lost path.
        ([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], (2,), (2,), "detached path"),
    ],
)  # fmt: skip
def test_of_two_causes_the_simpler_is_named(
    numeric: Any, ours: Any, output: tuple[int, ...], given: tuple[int, ...], name: str
) -> None:
    dtype = torch.complex128 if isinstance(numeric[0][0], complex) else torch.float64
    block, other = torch.tensor(numeric, dtype=dtype), torch.tensor(ours, dtype=dtype)
    at = torch.arange(1, block.shape[1] + 1).to(dtype)
    evidence = Evidence(
        "x", "out", given, output, other, block, torch.full(block.shape, 1e-12, dtype=torch.float64), at, block @ at,
        lambda x: block @ x, other.clone,
    )  # fmt: skip
    cause = named(evidence)
    assert cause is not None
    assert cause.name == name


def test_a_block_that_is_right_has_no_cause() -> None:
    for f in (torch.sin, lambda x: x.cumsum(0), lambda x: x.softmax(0)):
        for evidence in every_evidence(f, (signed(4),)):
            assert named(evidence) is None


def test_entries_that_did_not_settle_do_not_count() -> None:
    (evidence,) = every_evidence(function(torch.sin, lambda g, s, y: -g * s[0].cos()), (signed(4),))
    unknown = evidence.numeric.clone()
    unknown[0, 0] = torch.nan
    cause = named(replace(evidence, numeric=unknown))
    assert cause is not None
    assert cause.name == "wrong sign"
    assert "all 3 entries" in cause.text


def test_every_cause_says_what_it_looks_at_and_has_a_turn_of_its_own() -> None:
    ranked = CAUSES.all()
    assert all((inspect.getdoc(each.recognise) or "").endswith(".") for each in ranked.values())
    assert len({each.priority for each in ranked.values()}) == len(ranked)


def test_a_nan_beside_an_element_without_derivative_is_harmless() -> None:
    (evidence,) = every_evidence(torch.sqrt, (torch.tensor([0.0, 1.0], dtype=torch.float64),))
    cause = named(evidence)
    assert cause is not None
    assert cause.name == "NaN beside an element without derivative"
    assert cause.harmless
    assert "d out[1] / d x[0] is nan by the backward and 0 by differences, at x[0] = 0, out[1] = 1" in cause.text
