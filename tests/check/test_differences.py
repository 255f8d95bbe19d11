"""Differences: their value is right, and their error estimate holds."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from pullback.check.differences import Derivative, Differences, complex_step

EPS = torch.finfo(torch.float64).eps
# An estimate may fall short of the error by so much, at worst.
SLACK = 20.0


def holds(found: Derivative, exact: Tensor, size: float | Tensor) -> bool:
    """Whether the value is off by no more than the estimate says, and by rounding of this size."""
    return bool(((found.value - exact).abs() <= SLACK * found.error + 100 * EPS * size).all())


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=8),
    st.floats(-5, 5).filter(lambda x: abs(x) > 1e-3),
)
def test_polynomials(coefficients: list[float], x: float) -> None:
    def f(x: Tensor) -> Tensor:
        return sum((c * x**k for k, c in enumerate(coefficients)), torch.zeros(1, dtype=torch.float64))

    at = torch.tensor([x], dtype=torch.float64)
    exact = sum((c * k * at ** (k - 1) for k, c in enumerate(coefficients) if k), torch.zeros_like(at)) * at
    size = sum(abs(c) * (k + 1) * abs(x) ** k for k, c in enumerate(coefficients))
    differences = Differences(f, at, at, roundoff=EPS)
    for found in (differences.quick(), differences.thorough()):
        assert holds(found, exact, size * 2**19)
    assert float((differences.thorough().value - exact).abs()) <= 1e-10 * size + 1e-300


@given(st.floats(-30, 30).filter(lambda x: abs(x) > 1e-3))
def test_exponential(x: float) -> None:
    at = torch.tensor([x], dtype=torch.float64)
    found = Differences(torch.exp, at, at, roundoff=EPS).thorough()
    exact = at.exp() * at
    assert holds(found, exact, 0.0)
    assert float(((found.value - exact) / exact).abs()) < 1e-9


@given(st.floats(1, 1e3), st.floats(0.1, 10))
def test_oscillations(frequency: float, x: float) -> None:
    at = torch.tensor([x], dtype=torch.float64)
    found = Differences(lambda x: torch.sin(frequency * x), at, at, roundoff=EPS).thorough()
    exact = frequency * x * torch.cos(frequency * at)
    # The sine of a large number is as uncertain as the number.
    assert holds(found, exact, frequency * x * 2**19)


@given(st.lists(st.floats(-12, 12), min_size=2, max_size=10))
def test_badly_scaled(powers: list[float]) -> None:
    at = torch.tensor(powers, dtype=torch.float64).mul(math.log(10)).exp()
    found = Differences(lambda x: x.log() * x, at, at, roundoff=EPS).thorough()
    exact = (at.log() + 1) * at
    assert holds(found, exact, 0.0)
    assert float(((found.value - exact).abs() / (at.log().abs() * at + at)).max()) < 1e-9


def test_single_precision_inside_is_seen_in_the_error() -> None:
    at = torch.linspace(0.5, 2, 50, dtype=torch.float64)
    found = Differences(lambda x: x.float().sin().double(), at, at, roundoff=EPS).thorough()
    exact = at.cos() * at
    assert holds(found, exact, 0.0)
    assert float(found.error.min()) > 1e-9


def test_a_kink_is_found() -> None:
    at = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = Differences(torch.relu, at, torch.ones_like(at), roundoff=EPS).thorough()
    assert found.value.tolist() == pytest.approx([0.5, 1.0])
    assert found.kink is not None
    assert found.kink.tolist() == pytest.approx([0.5, 0.0])
    assert float(found.error.max()) < 1e-10


def test_a_jump_and_a_staircase_do_not_settle() -> None:
    at = torch.tensor([2.0, 2.03], dtype=torch.float64)
    found = Differences(lambda x: torch.stack([x[0].floor(), (10 * x[1]).floor()]), at, at, roundoff=EPS).thorough()
    assert found.error[0] > 1
    assert abs(found.value[1]) <= found.error[1]


def test_outside_of_the_domain_only_small_steps_count() -> None:
    at = torch.tensor([1e-3, -1.0], dtype=torch.float64)
    found = Differences(torch.log, at, torch.ones_like(at), roundoff=EPS).thorough()
    assert found.value[0] == pytest.approx(1e3, rel=1e-6)
    assert found.error[1] == math.inf


def test_complex_step_is_exact_where_it_is_trusted() -> None:
    at = torch.linspace(0.5, 2, 5, dtype=torch.float64)
    known = Differences(torch.exp, at, at, roundoff=EPS).thorough()
    found = complex_step(torch.exp, at, at, known)
    assert found is not None
    torch.testing.assert_close(found.value, at.exp() * at, rtol=4 * EPS, atol=0)


@pytest.mark.parametrize("f", [torch.relu, lambda x: x.abs() + 0j, lambda x: (x * x.conj()) * (1 + 0j), torch.real])
def test_complex_step_of_what_is_not_analytic_is_refused(f: object) -> None:
    at = torch.linspace(0.5, 2, 5, dtype=torch.float64)

    def real(x: Tensor) -> Tensor:
        value = f(x)  # type: ignore[operator]
        return value.real if value.is_complex() else value

    known = Differences(real, at, at, roundoff=EPS).thorough()
    assert complex_step(f, at, at, known) is None  # type: ignore[arg-type]
