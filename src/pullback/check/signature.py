"""Comparisons that the causes share: does a block of a Jacobian look like another one, within its error?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pullback.check.evidence import Evidence

# Entries that differ by less are equal, as a part of the largest entry: differences in float64 are no better.
ROUNDING = 1e-7
# The estimate of the error of a difference is only an estimate.
DOUBT = 10


@dataclass(frozen=True, eq=False)
class Block:
    """The entries that can be compared, those where both numbers are finite.

    Attributes:
        ours: Reverse mode; 0 where it cannot be compared.
        numeric: Differences; 0 where it cannot be compared.
        known: Which entries can be compared.
        slack: How far apart two entries may be and still count as equal.
    """

    ours: Tensor
    numeric: Tensor
    known: Tensor
    slack: Tensor

    @staticmethod
    def of(evidence: Evidence) -> Block:
        """The comparable entries of the evidence."""
        ours, numeric = _common(evidence.ours.detach(), evidence.numeric.detach())
        known = torch.isfinite(ours) & torch.isfinite(numeric)
        zero = torch.zeros((), dtype=ours.dtype, device=ours.device)
        ours, numeric = torch.where(known, ours, zero), torch.where(known, numeric, zero)
        scale = float(numeric.abs().max()) if numeric.numel() else 0.0
        error = evidence.error.detach().abs().to(numeric.abs())
        error = torch.where(torch.isfinite(error), error, torch.zeros_like(error))
        return Block(ours, numeric, known, DOUBT * error + ROUNDING * scale + torch.finfo(error.dtype).tiny)

    @cached_property
    def wrong(self) -> Tensor:
        """Where the two differ."""
        return self.known & ((self.ours - self.numeric).abs() > self.slack)

    @cached_property
    def right(self) -> Tensor:
        """Where the two agree."""
        return self.known & ~self.wrong

    @cached_property
    def told(self) -> Tensor:
        """Where the differences are surely not zero: the entries that say something."""
        return self.known & (self.numeric.abs() > 100 * self.slack)

    @cached_property
    def ours_told(self) -> Tensor:
        """Where reverse mode is surely not zero."""
        return self.known & (self.ours.abs() > 100 * self.slack)

    @cached_property
    def ratio(self) -> Tensor:
        """``ours / numeric`` where the differences say something; NaN elsewhere."""
        nan = torch.full_like(self.numeric, torch.nan)
        return torch.where(self.told, self.ours / torch.where(self.told, self.numeric, torch.ones_like(nan)), nan)

    @property
    def square(self) -> bool:
        """Whether there are as many rows as columns."""
        return self.ours.shape[0] == self.ours.shape[1]

    def says(self, candidate: Tensor, factor: Tensor | complex = 1) -> bool:
        """Whether reverse mode equals the candidate, ``factor`` times rearranged numbers, and that is no accident.

        It is one if the candidate is zero, or if reverse mode is what the differences say.
        """
        if not bool(self.wrong.any()):
            return False
        slack = self.slack * torch.as_tensor(factor).abs().clamp(min=1)
        fits = (self.ours - candidate).abs() <= slack
        return bool((fits | ~self.known).all()) and bool((self.known & (candidate.abs() > 100 * slack)).any())

    def sample(self) -> tuple[int, int]:
        """The row and the column where the two differ most."""
        gap = torch.where(self.known, (self.ours - self.numeric).abs(), torch.full_like(self.slack, -1.0))
        row, column = divmod(int(gap.argmax()), gap.shape[1])
        return row, column


def diagonal(block: Block) -> bool:
    """Whether every output depends on its own input only, by both ways."""
    if not block.square:
        return False
    off = ~torch.eye(block.ours.shape[0], dtype=torch.bool, device=block.ours.device)
    return not bool((off & (block.told | block.wrong)).any())


def shared_leading(evidence: Evidence, block: Block) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The blocks on the diagonal for a batch, for each number of leading dimensions that may be one.

    Yields:
        The number of blocks, then ``ours`` and ``numeric`` of shape (blocks, rows, columns); 1 comes last.
    """
    out, into = evidence.output_shape, evidence.input_shape
    depth = 0
    while depth < min(len(out), len(into)) and out[depth] == into[depth]:
        depth += 1
    for leading in range(depth, -1, -1):
        count = 1
        for size in out[:leading]:
            count *= size
        if count == 0 or (leading and count == 1):
            continue
        rows, columns = block.ours.shape[0] // count, block.ours.shape[1] // count
        shape = (count, rows, count, columns)
        each = torch.arange(count, device=block.ours.device)
        outside = (block.told | block.ours_told | block.wrong).reshape(shape).clone()
        outside[each, :, each, :] = False
        if not bool(outside.any()):
            yield count, block.ours.reshape(shape)[each, :, each, :], block.numeric.reshape(shape)[each, :, each, :]


def place(index: int, shape: tuple[int, ...]) -> str:
    """The index of an element as it is written: ``[0, 3]``; nothing for a number."""
    if not shape:
        return ""
    found = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        found.append(rest)
    return str(list(reversed(found)))


def example(evidence: Evidence, block: Block | None = None, at: tuple[int, int] | None = None) -> str:
    """One entry with its numbers: ``d output[0] / d x[3]: ours 2, differences 1``."""
    row, column = at or (block or Block.of(evidence)).sample()
    output = evidence.output + place(row, evidence.output_shape)
    by = evidence.input + place(column, evidence.input_shape)
    ours, numeric = figure(evidence.ours[row, column]), figure(evidence.numeric[row, column])
    return f"d {output} / d {by} is {ours} by the backward and {numeric} by differences"


def figure(value: Tensor | complex) -> str:
    """A number with six digits."""
    number = value.item() if isinstance(value, Tensor) else value
    if isinstance(number, complex):
        return f"{number.real:.6g}" if number.imag == 0 else f"{number.real:.6g}{number.imag:+.6g}i"
    return f"{number:.6g}"


def several(count: int, what: str) -> str:
    """``1 entry``, ``2 entries``."""
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count:,} {what if count == 1 else plural}"


def _common(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider dtype, at least float64."""
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float64)
    return first.to(dtype), second.to(dtype)
