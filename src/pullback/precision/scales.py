"""Which power of two, multiplied to the seed and divided out of the gradients, loses least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pullback.precision.lost import Lost, is_nothing, overall

LOST = 0.5  # An error of all gradients that leaves nothing to be saved.
SAFE = 1.25  # A scale is safe if no gradient's error is more than this times what it is at the best.

# How far powers are searched, and how far apart at first. Float16 has 40 powers of two; for the others, what their
# gradients are divided by must be a float32.
_REACH = {torch.float16: (48, 4)}
_WIDE = (120, 24)


@dataclass(frozen=True)
class Scales:
    """What loss scales do to the gradients. Scales are told by their exponents: 10 is the scale 2^10.

    Attributes:
        errors: The error of the gradients at the scales that were tried.
        best: The middle of the safe ones, which leaves most room on both sides; None if the gradients overflow at
            every scale.
        low: The smallest safe scale.
        high: The largest.
        reach: The largest that was tried, and the negative of the smallest.
    """

    errors: Mapping[int, float]
    best: int | None
    low: int | None
    high: int | None
    reach: int

    @property
    def one_is_safe(self) -> bool:
        """Whether nothing needs to be scaled."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    @property
    def factor(self) -> float | None:
        """The best scale as a number."""
        return None if self.best is None else 2.0**self.best

    def __str__(self) -> str:
        if self.best is None or self.low is None or self.high is None:
            return "no loss scale helps: the gradients are not finite at any of them"
        if self.errors[self.best] >= LOST:
            return f"no loss scale helps: the error is {self.errors[self.best]:.2g} at the best of them"
        low = f"2^{self.low}" if self.low > -self.reach else f"2^{-self.reach} or less"
        high = f"2^{self.high}" if self.high < self.reach else f"2^{self.reach} or more"
        said = f"best loss scale 2^{self.best} (error {self.errors[self.best]:.2g}); safe from {low} to {high}"
        return f"{said}; scale 1 is {'safe' if self.one_is_safe else f'not safe (error {self.errors[0]:.2g})'}"


def search(lost_at: Callable[[int], Sequence[Lost]], dtype: torch.dtype) -> Scales:
    """Find the scales that lose least, by trying.

    A power of two changes no digit of a number that stays in range, so the errors are the same over a range of scales
    and grow at its ends. A scale is as good as the digits that the gradients keep there on average.

    Args:
        lost_at: What each gradient loses at a scale, by its exponent.
        dtype: The lowest precision of the computation, which says how far to search.
    """
    tried = _Tried(lost_at, torch.finfo(dtype).eps / 2)
    reach, step = _REACH.get(dtype, _WIDE)
    best = min(range(-reach, reach + 1, step), key=lambda power: (tried.score(power), abs(power)))
    while step > 1:
        step = -(-step // 2)
        near = [power for power in (best, best - step, best + step) if abs(power) <= reach]
        best = min(near, key=tried.score)
    if not math.isfinite(tried.score(best)):
        return Scales(tried.errors, None, None, None, reach)
    low, high = (_end(lambda power: tried.is_safe(power, best), best, reach * side) for side in (-1, 1))
    middle = (low + high) // 2
    tried.score(middle)
    return Scales(tried.errors, middle, low, high, reach)


class _Tried:
    """The scales that were tried.

    Args:
        lost_at: What each gradient loses at a scale.
        rounding: An error that is as good as none.
    """

    def __init__(self, lost_at: Callable[[int], Sequence[Lost]], rounding: float) -> None:
        self._lost_at = lost_at
        self._rounding = rounding
        self._lost: dict[int, Sequence[Lost]] = {}

    @property
    def errors(self) -> dict[int, float]:
        """The error of all gradients together, by scale."""
        return {power: overall(self._lost[power]) for power in sorted(self._lost)}

    def score(self, power: int) -> float:
        """The mean logarithm of the errors."""
        each = self._each(power)
        return sum(map(math.log, each)) / len(each) if each else 0.0

    def is_safe(self, power: int, best: int) -> bool:
        """Whether each gradient is about as good as at the best scale."""
        pairs = zip(self._each(power), self._each(best), strict=True)
        return all(error <= SAFE * least for error, least in pairs)

    def _each(self, power: int) -> list[float]:
        """The errors: none better than rounding, and none worse than 1, which loses all, unless something overflows."""
        if power not in self._lost:
            self._lost[power] = self._lost_at(power)
        lost = self._lost[power]
        worst = math.inf if any(each.overflowed for each in lost) else 1.0
        counted = [each for each in lost if not is_nothing(each, lost)]
        return [worst if worst > 1 else min(max(each.error, self._rounding), 1.0) for each in counted]


def _end(is_safe: Callable[[int], bool], good: int, end: int) -> int:
    """The last power from a good one towards the end that is still safe, by halving."""
    if is_safe(end):
        return end
    bad = end
    while abs(bad - good) > 1:
        power = (good + bad) // 2
        if is_safe(power):
            good = power
        else:
            bad = power
    return good
