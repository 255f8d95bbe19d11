"""What the numbers of a cotangent look like: its norm, its range, and the shares of zeros, NaN, inf and subnormals.

A passing cotangent must be read at once, since nothing of it is kept, and cheaply: on a CPU its memory is read once,
and NaN and inf are counted only where the range shows one. On another device nothing is waited for: the numbers stay
there, as tensors without dimensions, until all are fetched together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# The integer that holds a float's bits, its exponent bits, and all bits but the sign. Integer tests are several times
# faster than comparing floats, and a CPU that flushes subnormals to zero cannot hide them.
_BITS = {
    torch.float16: (torch.int16, 0x7C00, 0x7FFF),
    torch.bfloat16: (torch.int16, 0x7F80, 0x7FFF),
    torch.float32: (torch.int32, 0x7F800000, 0x7FFFFFFF),
    torch.float64: (torch.int64, 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF),
}
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_CHUNK = 1 << 16  # Numbers that stay in a core's cache while they are looked at four times.
_SQUARES = {4: (1e-12, 1e15), 8: (1e-140, 1e150)}  # By bytes: the peaks for which a sum of squares loses nothing.
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the numbers of a tensor look like. Of complex numbers, the magnitudes are looked at.

    Attributes:
        shape: Its shape; -1 along a ragged dimension of a nested tensor.
        dtype: Its dtype.
        norm: The square root of the sum of squares, which never overflows; to about 1e-6 for float32 and below.
        low: The smallest number, NaN if one is a NaN; None if there are no numbers.
        high: The largest number, NaN if one is a NaN; None if there are no numbers.
        zeros: The share of exact zeros, in [0, 1]; those that a sparse tensor leaves out are counted.
        nans: The share of NaN.
        infs: The share of infinities.
        subnormal: The share of numbers that are not zero and smaller than the dtype's smallest normal number.
        numel: How many numbers there are.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    norm: float
    low: float | None
    high: float | None
    zeros: float
    nans: float
    infs: float
    subnormal: float
    numel: int

    @property
    def peak(self) -> float:
        """The largest magnitude; NaN if one is a NaN, and 0 if there are no numbers."""
        if self.low is None or self.high is None:
            return 0.0
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class _Counts:
    """The numbers of the entries that are stored, before they are shares of all entries."""

    norm: float
    low: float
    high: float
    small: float
    zeros: float
    nans: float
    infs: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Statistics whose numbers are still on their device, in the order of ``_Counts``."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    numel: int
    stored: int
    numbers: tuple[Tensor, ...]


def measure(tensor: Tensor) -> Statistics | Waiting:
    """The statistics of a tensor: at once on a CPU, for ``settle`` to fetch on another device."""
    if tensor.device.type == "cpu":
        return statistics(tensor)
    return postpone(tensor)


def statistics(tensor: Tensor) -> Statistics:
    """The statistics of a tensor.

    Example:
        >>> import torch
        >>> found = statistics(torch.tensor([3.0, 0.0, -4.0, 0.0]))
        >>> found.norm, found.low, found.high, found.zeros
        (5.0, -4.0, 3.0, 0.5)
    """
    if tensor.device.type != "cpu":
        (found,) = settle([postpone(tensor)])
        return found
    shape, numel, values = _stored(tensor)
    counts = _count(values) if values.numel() else None
    return _shares(shape, tensor.dtype, numel, values.numel(), counts)


def postpone(tensor: Tensor) -> Waiting:
    """The statistics of a tensor, computed where it lies without waiting for them."""
    shape, numel, values = _stored(tensor)
    numbers = _enqueue(values) if values.numel() else ()
    return Waiting(shape, tensor.dtype, numel, values.numel(), numbers)


def settle(waiting: Sequence[Waiting]) -> list[Statistics]:
    """Fetch the numbers of all: one transfer for each device and dtype of the numbers."""
    flat = iter(fetch([number for each in waiting for number in each.numbers]))
    return [_shares(each.shape, each.dtype, each.numel, each.stored, _read(each, flat)) for each in waiting]


def fetch(scalars: Sequence[Tensor]) -> list[float]:
    """The numbers of tensors without dimensions: one transfer for each device and dtype."""
    found: list[float] = [0.0] * len(scalars)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, scalar in enumerate(scalars):
        groups.setdefault((scalar.device, scalar.dtype), []).append(position)
    synchronize(device for device, _ in groups)
    for positions in groups.values():
        numbers = torch.stack([scalars[position] for position in positions]).tolist()
        for position, number in zip(positions, numbers, strict=True):
            found[position] = number
    return found


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for all streams of the devices: a backward pass computes on the streams of the forward."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _read(waiting: Waiting, numbers: Iterator[float]) -> _Counts | None:
    if not waiting.numbers:
        return None
    return _Counts(*(next(numbers) for _ in waiting.numbers))


def _shares(shape: tuple[int, ...], dtype: torch.dtype, numel: int, stored: int, counts: _Counts | None) -> Statistics:
    """Counts of the stored entries as shares of all; the entries that are not stored are zeros."""
    if counts is None:
        zero = 0.0 if numel else None
        return Statistics(shape, dtype, 0.0, zero, zero, float(numel > 0), 0.0, 0.0, 0.0, numel)
    low, high = counts.low, counts.high
    if stored < numel and not math.isnan(low):
        low, high = min(low, 0.0), max(high, 0.0)
    return Statistics(
        shape=shape,
        dtype=dtype,
        norm=counts.norm,
        low=low,
        high=high,
        zeros=(counts.zeros + numel - stored) / numel,
        nans=counts.nans / numel,
        infs=counts.infs / numel,
        subnormal=(counts.small - counts.zeros) / numel,
        numel=numel,
    )


def _stored(tensor: Tensor) -> tuple[tuple[int, ...], int, Tensor]:
    """The shape, the number of entries, and the entries that are stored, as real numbers."""
    values = tensor.detach()
    if values.is_nested:
        parts = values.unbind()
        shape = _ragged_shape([tuple(part.shape) for part in parts])
        values = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0, dtype=tensor.dtype)
        numel = values.numel()
    else:
        shape, numel = tuple(values.shape), values.numel()
        if values.layout is torch.sparse_coo:
            values = values.coalesce().values()
        elif values.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            values = values.values()
        elif values.layout is not torch.strided:
            values = values.to_dense()
    if values.is_complex():
        values = values.abs()
    elif values.dtype not in _BITS:
        values = values.to(torch.float32)
    return shape, numel, values.resolve_neg()


def _ragged_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if not shapes:
        return (0,)
    return (len(shapes), *(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)))


def _count(values: Tensor) -> _Counts:
    """The counts of real numbers on a CPU, at least one: chunk by chunk, so that memory is read once.

    numpy's minimum, maximum and integer tests are several times as fast as torch's on one core.
    """
    integer, exponent, magnitude = _BITS[values.dtype]
    bits = values.view(integer).numpy().ravel(order="K")
    low, high, norm = math.inf, -math.inf, 0.0
    small = zeros = nans = infs = 0
    with np.errstate(all="ignore"):
        for start in range(0, bits.size, _CHUNK):
            chunk = bits[start : start + _CHUNK]
            numbers = _numbers(chunk, values.dtype)
            least, most = float(numbers.min()), float(numbers.max())
            if not math.isfinite(most - least):
                nans += int(np.count_nonzero(np.isnan(numbers)))
                infs += int(np.count_nonzero(np.isinf(numbers)))
            few = int(np.count_nonzero((chunk & exponent) == 0))
            small += few
            zeros += int(np.count_nonzero((chunk & magnitude) == 0)) if few else 0
            low, high, norm = min(low, least), max(high, most), math.hypot(norm, _chunk_norm(numbers, least, most))
    if nans:
        low = high = norm = math.nan
    return _Counts(norm, low, high, small, zeros, nans, infs)


def _numbers(bits: Array, dtype: torch.dtype) -> Array:
    """Bits as numbers that numpy computes with."""
    if dtype in _NUMPY:
        return bits.view(_NUMPY[dtype])
    numbers: Array = torch.from_numpy(bits).view(dtype).to(torch.float32).numpy()
    return numbers


def _chunk_norm(numbers: Array, low: float, high: float) -> float:
    """The norm of a chunk; scaled in float64 where squares would leave the range of its dtype."""
    peak = max(-low, high)
    least, most = _SQUARES[numbers.itemsize]
    if least < peak < most:
        return math.sqrt(np.dot(numbers, numbers))
    if not math.isfinite(peak) or peak == 0:
        return abs(peak)
    scaled = numbers.astype(np.float64) / peak
    return peak * math.sqrt(np.dot(scaled, scaled))


def _enqueue(values: Tensor) -> tuple[Tensor, ...]:
    """The counts of real numbers as tensors, without a look at any of them."""
    low, high = torch.aminmax(values)
    integer, exponent, magnitude = _BITS[values.dtype]
    bits = values.view(integer)
    return (
        _norm(values, low, high),
        low,
        high,
        torch.count_nonzero((bits & exponent) == 0),
        torch.count_nonzero((bits & magnitude) == 0),
        torch.count_nonzero(torch.isnan(values)),
        torch.count_nonzero(torch.isinf(values)),
    )


def _norm(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    if values.dtype is torch.float64:
        peak = torch.maximum(low.abs(), high.abs())
        peak = torch.where((peak > 0) & torch.isfinite(peak), peak, 1.0)
        scaled: Tensor = torch.linalg.vector_norm(values / peak)
        return peak * scaled
    wide = torch.float32 if values.device.type == "mps" else torch.float64  # mps has no float64
    norm: Tensor = torch.linalg.vector_norm(values, dtype=wide)
    return norm
