"""What a tensor lost, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pullback.precision.lost import Lost, figures, is_nothing, overall, read


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_figures_are_those_of_numpy(dtype):
    exact = torch.randn(1000, dtype=torch.float64) * 10.0 ** torch.linspace(-12, 3, 1000, dtype=torch.float64)
    exact[::7] = 0
    found = exact.to(dtype)
    (lost,) = read([figures(found, exact)])
    wide, meant = found.double().numpy(), exact.numpy()
    nonzero = meant != 0
    assert lost.norm == pytest.approx(np.linalg.norm(meant), rel=1e-12)
    assert lost.error == pytest.approx(np.linalg.norm(wide - meant) / np.linalg.norm(meant), rel=1e-12)
    assert lost.zeroed == pytest.approx(np.mean(wide[nonzero] == 0), abs=1e-15)
    tiny = torch.finfo(dtype).tiny
    small = (np.abs(wide[nonzero]) < tiny) & (wide[nonzero] != 0)
    assert lost.subnormal == pytest.approx(np.mean(small), abs=1e-15)
    assert lost.overflowed == 0
    assert lost.digits == pytest.approx(-math.log10(lost.error))
    if dtype is torch.float16:
        assert lost.zeroed > 0.1
        assert lost.subnormal > 0.1


def test_an_overflow_makes_the_error_infinite_and_is_counted_among_all():
    exact = torch.tensor([1e6, 1.0, 0.0, -1e7], dtype=torch.float64)
    (lost,) = read([figures(exact.half(), exact)])
    assert (lost.error, lost.overflowed, lost.digits) == (math.inf, 0.5, 0.0)


def test_what_is_not_finite_in_float64_is_no_loss():
    exact = torch.tensor([math.inf, math.nan, 2.0], dtype=torch.float64)
    (lost,) = read([figures(exact.half(), exact)])
    assert (lost.error, lost.overflowed, lost.norm) == (0.0, 0.0, 2.0)


def test_a_missing_gradient_is_zero():
    (lost,) = read([figures(None, torch.tensor([3.0, 4.0], dtype=torch.float64))])
    assert (lost.norm, lost.error, lost.zeroed) == (5.0, 1.0, 1.0)


def test_complex_numbers_are_compared_part_by_part():
    exact = torch.tensor([3 + 4e-60j], dtype=torch.complex128)
    (lost,) = read([figures(exact.to(torch.complex64), exact)])
    assert (lost.norm, lost.zeroed) == (3.0, 0.5)


def test_no_entries_lose_nothing():
    (lost,) = read([figures(torch.ones(0), torch.ones(0, dtype=torch.float64))])
    assert lost == Lost(0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_overall_error_counts_all_alike_and_leaves_out_what_is_zero_but_for_rounding():
    big, small, noise = Lost(1.0, 0.3, 0, 0, 0), Lost(1e-9, 0.4, 0, 0, 0), Lost(1e-17, 1e9, 0, 0, 0)
    assert overall([big, small, noise]) == pytest.approx(math.sqrt((0.09 + 0.16) / 2))
    assert is_nothing(noise, [big, small, noise])
    assert not is_nothing(small, [big, small, noise])
    assert overall([big, Lost(1.0, math.inf, 0, 0, 0.1)]) == math.inf
    assert overall([Lost(1.0, 50.0, 0, 0, 0)]) == 1.0
    assert overall([Lost(0.0, 0.0, 0, 0, 0)]) == 0.0
