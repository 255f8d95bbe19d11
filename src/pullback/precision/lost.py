"""How much of a tensor is lost against the same tensor in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A gradient this much smaller than the largest is zero but for float64's own rounding: of a bias before a
# normalisation, say. What a lower precision makes of it is noise, and no loss scale helps.
NOTHING = 1e-12
FULL = 17  # Digits that no dtype here has more of.


@dataclass(frozen=True, slots=True)
class Lost:
    """What a tensor in low precision lost against float64.

    Attributes:
        norm: The norm in float64.
        error: ``‖found - exact‖ / ‖exact‖``; inf where a number overflowed.
        zeroed: The share of the entries that are not zero in float64 and became zero.
        subnormal: The share of them that became subnormal: they have fewer digits than others.
        overflowed: The share of all entries that are finite in float64 and became infinite or NaN.
    """

    norm: float
    error: float
    zeroed: float
    subnormal: float
    overflowed: float

    @property
    def digits(self) -> float:
        """The decimal digits that are kept, of the tensor as a whole."""
        if self.error == 0:
            return float(FULL)
        return min(-math.log10(min(self.error, 1.0)) or 0.0, float(FULL))


def figures(found: Tensor | None, exact: Tensor) -> Tensor:
    """The sums that :func:`read` makes a :class:`Lost` of, on the device of the tensors, waited for by nobody.

    Args:
        found: The tensor in low precision; None for zeros.
        exact: The tensor in float64.
    """
    value, reference = torch.zeros_like(exact) if found is None else found.detach(), exact.detach()
    value, reference = _dense(value), _dense(reference)
    tiny = torch.finfo(value.dtype.to_real()).smallest_normal
    if reference.is_complex():
        value, reference = (torch.view_as_real(each.resolve_conj()) for each in (value, reference))
    wide = value.to(torch.float64)
    finite = reference.isfinite()
    nonzero = finite & (reference != 0)
    gone = finite & ~wide.isfinite()
    magnitude = wide.abs()
    difference = torch.where(finite & ~gone, wide - reference, 0.0)
    return torch.stack(
        [
            torch.linalg.vector_norm(difference),
            torch.linalg.vector_norm(torch.where(finite, reference, 0.0)),
            nonzero.sum().double(),
            (nonzero & (wide == 0)).sum().double(),
            (nonzero & (wide != 0) & (magnitude < tiny)).sum().double(),
            gone.sum().double(),
            torch.full((), reference.numel(), dtype=torch.float64, device=reference.device),
        ]
    )


def read(waiting: Sequence[Tensor]) -> list[Lost]:
    """The figures of all, fetched with one transfer for each device."""
    rows: dict[int, list[float]] = {}
    for device in {each.device for each in waiting}:
        places = [place for place, each in enumerate(waiting) if each.device == device]
        numbers = torch.stack([waiting[place] for place in places]).tolist()
        rows |= dict(zip(places, numbers, strict=True))
    return [_lost(rows[place]) for place in range(len(waiting))]


def overall(lost: Sequence[Lost]) -> float:
    """One error for several tensors: the root mean square of theirs, so that a small gradient counts as a large one.

    One that is lost wholly counts 1, whatever the noise in its place. What is zero but for rounding is left out; an
    overflow anywhere makes it infinite.
    """
    if any(each.overflowed for each in lost):
        return math.inf
    counted = [min(each.error, 1.0) for each in lost if not is_nothing(each, lost)]
    return math.hypot(*counted) / math.sqrt(len(counted)) if counted else 0.0


def is_nothing(one: Lost, among: Sequence[Lost]) -> bool:
    """Whether a tensor is zero in float64 but for rounding, beside others."""
    return one.norm <= NOTHING * max(each.norm for each in among)


def _dense(tensor: Tensor) -> Tensor:
    """All the numbers of a tensor of any layout."""
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _lost(row: Sequence[float]) -> Lost:
    difference, norm, nonzero, zeroed, subnormal, gone, numel = row
    if gone:
        error = math.inf
    elif norm:
        error = difference / norm
    else:
        error = 0.0 if not difference else math.inf
    share = 1 / nonzero if nonzero else 0.0
    return Lost(norm, error, zeroed * share, subnormal * share, gone / numel if numel else 0.0)
