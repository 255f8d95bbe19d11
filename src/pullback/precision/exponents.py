"""The exponents of a cotangent's numbers: how far a loss scale may move them before they leave the range of a dtype.

A power of two moves all of them by the same steps, so how many there are of each says what every scale would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHARE = 0.01  # Of the numbers that are not zero: so many may be subnormal.
# The integer that holds a number's bits, where its exponent begins, and how many values that has.
_BITS = {
    torch.float16: (torch.int16, 10, 32),
    torch.bfloat16: (torch.int16, 7, 256),
    torch.float32: (torch.int32, 23, 256),
}
_CHUNK = 1 << 16
LOW = (torch.float16, torch.bfloat16)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Exponents:
    """How the numbers of a tensor lie in the range of its dtype.

    Attributes:
        dtype: Their dtype.
        bad: The share of inf and NaN.
        zero: The share of exact zeros.
        subnormal: The share of those that are not zero that are subnormal.
        top: The exponent of the largest number as the dtype stores it, 0 if that is subnormal; None if there is nothing
            but zeros, inf and NaN.
        bottom: The one below which no more than ``SHARE`` of the numbers lie that are not zero; None likewise.
    """

    dtype: torch.dtype
    bad: float
    zero: float
    subnormal: float
    top: int | None
    bottom: int | None

    @classmethod
    def of(cls, dtype: torch.dtype, counts: Array, zeros: int) -> Exponents:
        """From how many numbers have each stored exponent, and how many are exactly zero."""
        numel, bad = int(counts.sum()), int(counts[-1])
        nonzero = numel - zeros - bad
        if not nonzero:
            return cls(dtype, bad / numel if numel else 0.0, zeros / numel if numel else 0.0, 0.0, None, None)
        finite = counts[:-1].copy()
        finite[0] -= zeros
        return cls(
            dtype,
            bad / numel,
            zeros / numel,
            int(finite[0]) / nonzero,
            int(np.flatnonzero(finite)[-1]),
            int(np.searchsorted(finite.cumsum(), SHARE * nonzero, side="right")),
        )

    @property
    def last(self) -> int:
        """The stored exponent of the largest numbers that the dtype holds."""
        return _BITS[self.dtype][2] - 2

    @property
    def up(self) -> int | None:
        """How many doublings the largest number takes before it overflows; -1 if one has; None if all are zero."""
        if self.bad:
            return -1
        return None if self.top is None else self.last - self.top

    @property
    def down(self) -> int | None:
        """How many halvings leave all but ``SHARE`` of the numbers normal; -1 if they are not now."""
        return None if self.bottom is None else self.bottom - 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """Exponents that are still on their device: the counts, and the number of zeros after them."""

    dtype: torch.dtype
    numbers: Tensor


def look(tensor: Tensor) -> Exponents | Waiting | None:
    """The exponents of a tensor: at once on a CPU, for :func:`settle` to fetch on another device.

    None for what has no exponents to count: float64 and complex numbers, and layouts that are not dense.
    """
    if tensor.dtype not in _BITS or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    values = tensor.detach().resolve_neg()
    integer, shift, size = _BITS[tensor.dtype]
    if values.device.type == "cpu":
        return _count(values.view(integer), tensor.dtype, shift, size)
    bits = values.view(integer).reshape(-1)
    exponents = ((bits >> shift) & (size - 1)).long()
    one = torch.ones((), dtype=torch.int64, device=bits.device)
    counts = torch.zeros(size, dtype=torch.int64, device=bits.device).scatter_add_(0, exponents, one.expand_as(bits))
    zeros = bits.numel() - torch.count_nonzero(values)
    return Waiting(tensor.dtype, torch.cat([counts, zeros.reshape(1)]))


def settle(waiting: Sequence[Waiting]) -> list[Exponents]:
    """Fetch the counts of all, with one transfer for each device."""
    found: dict[int, Exponents] = {}
    for device in {each.numbers.device for each in waiting}:
        places = [place for place, each in enumerate(waiting) if each.numbers.device == device]
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a backward pass computes on the streams of the forward
        numbers: list[int] = torch.cat([waiting[place].numbers for place in places]).tolist()
        start = 0
        for place in places:
            end = start + waiting[place].numbers.numel()
            found[place] = Exponents.of(waiting[place].dtype, np.array(numbers[start : end - 1]), numbers[end - 1])
            start = end
    return [found[place] for place in range(len(waiting))]


def rounds_away(part: Exponents, whole: Exponents) -> bool:
    """Whether a part that was added to a whole of its dtype is too small to change all but ``SHARE`` of its numbers."""
    if part.top is None or whole.bottom is None:
        return False
    digits = _BITS[part.dtype][1]
    return part.top + digits + 1 < whole.bottom


def _count(values: Tensor, dtype: torch.dtype, shift: int, size: int) -> Exponents:
    bits: Any = values.numpy().ravel(order="K")
    counts = np.zeros(size, dtype=np.int64)
    zeros = 0
    for start in range(0, bits.size, _CHUNK):
        chunk = bits[start : start + _CHUNK]
        here = np.bincount((chunk >> shift) & (size - 1), minlength=size)
        counts += here
        if here[0]:
            zeros += int(np.count_nonzero((chunk << 1) == 0))  # but for the sign
    return Exponents.of(dtype, counts, zeros)
