"""Derivatives by central differences, with an estimate of their error for each entry.

``D(t) = (f(x + tv) - f(x - tv)) / 2t`` has an expansion in even powers of t, so a table of ``D`` at steps that shrink
by a factor of 4 is extrapolated to ``t = 0`` (Richardson, Neville). Each number of the table has two errors: of
truncation, for which the distance from its neighbours in the table stands, and of roundoff, ``2 ν / t`` where ν is
the noise of f. For each entry the number with the least sum of both is taken.

Source: Ridders, "Accurate computation of F'(x) and F'(x) F''(x)", Advances in Engineering Software 4 (1982).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR = 4.0
# Levels above and below the first two when all are taken.
COARSER, FINER = 3, 4
# From so many of the finest levels the noise of f is told.
NOISE_LEVELS = 2


@dataclass(frozen=True)
class Derivative:
    """A directional derivative.

    Attributes:
        value: ``Jv``, flat.
        error: An estimate of the error of each entry; infinite where nothing is known.
        way: How it was found.
        kink: How far the slopes of both sides are from the value, which is their mean; 0 where f is smooth, None
            where nobody looked.
    """

    value: Tensor
    error: Tensor
    way: str
    kink: Tensor | None = None

    @property
    def allowed(self) -> Tensor:
        """How far from the value a derivative may be: any slope between both sides of a kink is one."""
        return self.error if self.kink is None else self.error + self.kink


def first_step(roundoff: float) -> float:
    """The largest step of the quick table: ``ε^(1/5)``, at which a difference of fourth order is the most exact."""
    return 2.0 ** -round(-math.log2(roundoff) / 5)


class Differences:
    """Central differences of one function in one direction, with as many steps as are asked for.

    Args:
        f: From a flat float64 vector to another one.
        x: The point.
        v: The direction, of about the size of x: steps are relative to it.
        roundoff: The unit roundoff of f's arithmetic.
        at: f(x), where it is known.
    """

    def __init__(
        self, f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, *, roundoff: float, at: Tensor | None = None
    ) -> None:
        self.f, self.x, self.v, self.roundoff = f, x, v, roundoff
        self.at = f(x) if at is None else at
        self._values: dict[float, tuple[Tensor, Tensor]] = {}
        self._slopes: dict[float, Tensor] = {}
        self._top = first_step(roundoff)

    def simple(self, natural: Tensor) -> Derivative:
        """From one step: two evaluations, which are taken to tell half of the digits.

        Nothing is known of the error here: what agrees to so many digits is right, and anything else needs more steps.

        Args:
            natural: The natural size of each entry.
        """
        # Of the steps in use the one next to ε^(1/3), at which a difference of second order is the most exact.
        power = round((math.log2(self._top) - math.log2(self.roundoff) / 3) / math.log2(FACTOR))
        step = self._top / FACTOR**power
        value = self._slope(step)
        error = value.abs().add_(natural).mul_(math.sqrt(self.roundoff))
        return _clean(value, error, f"differences, step {step:.1e} of each input")

    def quick(self) -> Derivative:
        """From two steps: four evaluations."""
        step = self._top / FACTOR
        coarse, fine = self._slope(self._top), self._slope(step)
        correction = (fine - coarse).div_(FACTOR**2 - 1)
        value = fine + correction
        error = correction.abs_().add_(self._roundoff(step), alpha=2 / step)
        return _clean(value, error, f"differences, steps {self._top:.1e} and {step:.1e} of each input")

    def thorough(self) -> Derivative:
        """From all steps: sixteen evaluations in all."""
        steps = [self._top * FACTOR**power for power in range(COARSER, -FINER - 1, -1)]
        slopes = [self._slope(step) for step in steps]
        noise = self._noise(steps, slopes)
        value, error = _neville(slopes, [2 * noise / step for step in steps])
        error = error + _contradiction(value, slopes, [4 * noise / step for step in steps])
        found = _clean(value, error, f"differences, extrapolated from steps {steps[0]:.1e} to {steps[-1]:.1e}")
        return Derivative(found.value, found.error, found.way, self._half_kink(steps, noise))

    def one_sided(self, step: float) -> tuple[Tensor, Tensor]:
        """The slopes to the left and to the right, from one step."""
        above, below = self._pair(step)
        return (self.at - below) / step, (above - self.at) / step

    def _pair(self, step: float) -> tuple[Tensor, Tensor]:
        if step not in self._values:
            above, below = (self.f(torch.add(self.x, self.v, alpha=turn)) for turn in (step, -step))
            self._values[step] = above, below
        return self._values[step]

    def _slope(self, step: float) -> Tensor:
        if step not in self._slopes:
            above, below = self._pair(step)
            self._slopes[step] = (above - below).div_(2 * step)
        return self._slopes[step]

    def _roundoff(self, step: float) -> Tensor:
        """The roundoff of a difference: of f's values, and of the points themselves."""
        return self._pair(step)[0].abs().add_(self._slope(step).abs()).mul_(self.roundoff)

    def _noise(self, steps: list[float], slopes: list[Tensor]) -> Tensor:
        """The noise of f, ν: roundoff, or what makes slopes extrapolated once differ at the finest steps."""
        noise = self._roundoff(steps[-1])
        once = [fine + (fine - coarse) / (FACTOR**2 - 1) for coarse, fine in itertools.pairwise(slopes)]
        for index in range(len(once) - NOISE_LEVELS, len(once)):
            seen = steps[index + 1] * (once[index] - once[index - 1]).abs()
            noise = torch.maximum(noise, torch.nan_to_num(seen, nan=0.0, posinf=0.0))
        return noise

    def _half_kink(self, steps: list[float], noise: Tensor) -> Tensor:
        """Half of how much the slopes to the right and left differ in the limit; 0 where that is not significant.

        ``(f(x + tv) - 2f(x) + f(x - tv)) / t`` vanishes with t where f is smooth, and stays where it has a kink.
        """
        half = torch.zeros_like(noise)
        bends = []
        for step in steps:
            left, right = self.one_sided(step)
            bends.append((right - left).abs())
        for index in range(1, len(steps)):
            bend, before = bends[index], bends[index - 1]
            stays = (bend > 8 * noise / steps[index]) & (bend > before / 2)
            half = torch.where(stays, torch.maximum(half, bend / 2) if index == 1 else bend / 2, torch.zeros_like(half))
        return torch.nan_to_num(half, nan=0.0, posinf=0.0)


def complex_step(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, known: Derivative) -> Derivative | None:
    """``Im f(x + itv) / t`` with a tiny t, which loses no digit; None where that is not the derivative.

    Trusted only for entries that agree with differences, and only if all do that have settled.

    Args:
        f: A function that takes complex vectors.
        x: The point.
        v: The direction.
        known: The derivative by real differences.
    """
    step = 1e-100
    try:
        value = f(torch.complex(x, step * v))
    except Exception:  # a function may refuse complex numbers with any error
        return None
    if not value.is_complex() or value.shape != known.value.shape:
        return None
    slope = value.imag / step
    settled = known.error <= 1e-3 * (known.value.abs() + known.value.abs().mean())
    agrees = ((slope - known.value).abs() <= 3 * known.error) & slope.isfinite()
    if not bool(settled.any()) or not bool(agrees[settled].all()):
        return None
    roundoff = torch.finfo(torch.float64).eps * slope.abs()
    value, error = torch.where(settled, slope, known.value), torch.where(settled, 16 * roundoff, known.error)
    return Derivative(value, error, "complex step", known.kink)


def _neville(slopes: list[Tensor], roundoffs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The best entry of the extrapolation table, and its error, for each element."""
    best = slopes[-1]
    error = torch.full_like(best, math.inf)
    previous: list[Tensor] = []
    for slope, roundoff in zip(slopes, roundoffs, strict=True):
        row = [slope]
        for power, before in enumerate(previous, start=1):
            row.append(row[-1] + (row[-1] - before) / (FACTOR ** (2 * power) - 1))
        for column, number in enumerate(row):
            if not previous:
                continue
            gap = (number - previous[max(column - 1, 0)]).abs()
            if column:
                gap = torch.maximum(gap, (number - row[column - 1]).abs())
            total = torch.nan_to_num(gap + roundoff, nan=math.inf)
            better = total < error
            best, error = torch.where(better, number, best), torch.where(better, total, error)
        previous = row
    return best, error


def _contradiction(value: Tensor, slopes: list[Tensor], roundoffs: list[Tensor]) -> Tensor:
    """By how much slopes at finer steps differ from the value found, beyond their own truncation and roundoff.

    A staircase looks straight from afar, and its slope from there is not a derivative.
    """
    most = torch.zeros_like(value)
    for index in range(len(slopes) - NOISE_LEVELS, len(slopes)):
        truncation = (slopes[index] - slopes[index - 1]).abs()
        excess = (value - slopes[index]).abs() - truncation - roundoffs[index]
        most = torch.maximum(most, torch.nan_to_num(excess, nan=0.0, posinf=0.0))
    return most


def _clean(value: Tensor, error: Tensor, way: str) -> Derivative:
    if bool(error.sum().isfinite()):
        return Derivative(value, error, way)
    known = value.isfinite() & error.isfinite()
    return Derivative(torch.where(known, value, 0.0), torch.where(known, error, math.inf), way)
