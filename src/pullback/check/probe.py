"""Difference quotients along single inputs, from both sides: what is asked where the differences did not settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.signature import Block

# So many inputs are looked at one by one at first.
MOST_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class Probe:
    """The function along single elements of its input.

    Attributes:
        evidence: What it is taken from.
        columns: The elements of the input along which it looks.
        open: The entries in these columns that have to be explained, of shape (outputs, columns): both numbers differ,
            or the differences did not settle.
        ours: Reverse mode there.
        middle: The output at the point itself.
    """

    evidence: Evidence
    columns: Tensor
    open: Tensor
    ours: Tensor
    middle: Tensor

    @staticmethod
    def of(evidence: Evidence, most: int | None = MOST_COLUMNS) -> Probe | None:
        """Along the inputs with an entry to explain; None for complex numbers, or where there is none.

        Args:
            evidence: Where to look.
            most: Of more inputs, so many that are spread evenly; None: all of them.
        """
        if evidence.at.is_complex() or evidence.ours.is_complex() or not evidence.ours.numel():
            return None
        block = Block.of(evidence)
        entries = block.wrong | (torch.isfinite(evidence.ours) & ~torch.isfinite(evidence.numeric))
        columns = entries.any(0).nonzero()[:, 0]
        if not columns.numel():
            return None
        if most is not None and columns.numel() > most:
            columns = columns[torch.linspace(0, columns.numel() - 1, most).long().to(columns.device)]
        ours = evidence.ours.detach()[:, columns].to(torch.float64)
        return Probe(evidence, columns, entries[:, columns], ours, evidence.f(evidence.at).detach())

    def steps(self, relative: float) -> Tensor:
        """A step for each column, relative to the size of the element or 1."""
        at = self.evidence.at[self.columns].abs().to(torch.float64)
        return relative * at.clamp(min=1)

    def values(self, steps: Tensor) -> Tensor:
        """The outputs at one step along each column, of shape (outputs, columns)."""
        found = []
        for column, step in zip(self.columns.tolist(), steps.tolist(), strict=True):
            moved = self.evidence.at.detach().clone()
            moved[column] += step
            found.append(self.evidence.f(moved).detach())
        return torch.stack(found, 1).to(torch.float64)

    def side(self, relative: float) -> Tensor:
        """The difference quotient to one side, extrapolated; to the left for a negative step."""
        whole = self.steps(relative)
        middle = self.middle[:, None].to(torch.float64)
        coarse = (self.values(whole) - middle) / whole
        fine = (self.values(whole / 2) - middle) / (whole / 2)
        return 2 * fine - coarse

    def central(self, relative: float) -> Tensor:
        """The central difference quotient."""
        steps = self.steps(relative)
        return (self.values(steps) - self.values(-steps)) / (2 * steps)

    def entry(self, which: Tensor) -> tuple[int, int]:
        """The row and column, in the whole block, of the first entry of a mask."""
        row, column = which.nonzero()[0].tolist()
        return row, int(self.columns[column])


def judged(evidence: Evidence, judge: Callable[[Probe], Cause | None]) -> Cause | None:
    """What is said of some of the inputs; nothing is called harmless before all of them have been looked at."""
    some = Probe.of(evidence)
    cause = None if some is None else judge(some)
    if some is None or cause is None or not cause.harmless or some.columns.numel() < MOST_COLUMNS:
        return cause
    every = Probe.of(evidence, most=None)
    return None if every is None else judge(every)
