"""The search for a loss scale, on errors that are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from pullback.precision.lost import Lost
from pullback.precision.scales import search


def plateau(low, high, least=1e-3):
    """One gradient: least within, twice as bad for each step below, overflowing above."""

    def lost_at(power):
        if power > high:
            return [Lost(1.0, math.inf, 0, 0, 1.0)]
        return [Lost(1.0, min(least * 2.0 ** max(low - power, 0), 1.0), 0, 0, 0)]

    return lost_at


@pytest.mark.parametrize(("low", "high"), [(3, 9), (-20, -3), (7, 7), (-1, 30), (-48, 48), (13, 14)])
def test_the_plateau_is_found_to_the_step(low, high):
    scales = search(plateau(low, high), torch.float16)
    assert (scales.low, scales.high, scales.best) == (low, high, (low + high) // 2)
    assert scales.factor == 2.0**scales.best
    assert scales.one_is_safe == (low <= 0 <= high)
    assert scales.errors[scales.best] == min(scales.errors.values())


def test_a_wide_dtype_is_searched_farther():
    scales = search(plateau(-97, 88, least=0.01), torch.bfloat16)
    assert (scales.low, scales.high) == (-97, 88)
    assert scales.reach == 120


def test_the_ends_of_the_search_are_told_as_such():
    said = str(search(plateau(-200, 200), torch.float32))
    assert "safe from 2^-120 or less to 2^120 or more; scale 1 is safe" in said


def test_a_small_gradient_counts_as_much_as_a_large_one():
    def lost_at(power):
        large = plateau(-40, 20)(power)
        return [*large, *(Lost(1e-6, each.error, 0, 0, 0) for each in plateau(12, 40)(power))]

    scales = search(lost_at, torch.float16)
    assert (scales.low, scales.high) == (12, 20)
    assert not scales.one_is_safe
    assert "scale 1 is not safe" in str(scales)


def test_noise_in_place_of_zero_decides_nothing():
    def lost_at(power):
        return [*plateau(4, 10)(power), Lost(1e-18, 10.0 ** (20 - power), 0, 0, 0), Lost(1.0, 300.0 - power, 0, 0, 0)]

    scales = search(lost_at, torch.float16)
    assert (scales.low, scales.high) == (4, 10)


def test_no_scale_helps_what_is_never_finite():
    scales = search(lambda power: [Lost(1.0, math.inf, 0, 0, 1.0)], torch.float16)
    assert (scales.best, scales.low, scales.high, scales.factor, scales.one_is_safe) == (None, None, None, None, False)
    assert str(scales) == "no loss scale helps: the gradients are not finite at any of them"


def test_no_scale_helps_where_all_is_lost_at_each():
    said = str(search(lambda power: [Lost(1.0, 0.8, 0, 0, 0)], torch.float16))
    assert said == "no loss scale helps: the error is 0.8 at the best of them"


def test_a_scale_is_tried_once():
    tried = []

    def lost_at(power):
        tried.append(power)
        return plateau(3, 9)(power)

    search(lost_at, torch.float16)
    assert len(tried) == len(set(tried))
    assert len(tried) < 45
