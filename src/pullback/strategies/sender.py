"""Sender: how passes run through a recorded program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.autodiff.linearize import Pass, Tensors
from pullback.autodiff.replay import Replay, transposed
from pullback.data.problem import Side

if TYPE_CHECKING:  # it needs SciPy, which `import pullback` does without
    from pullback.sparsity.structure import Structure


@dataclass(frozen=True, eq=False)
class Sender:
    """How one part of a strategy's passes runs through a recorded program.

    Attributes:
        graph: The program, cut down to what this part needs.
        transposed: Whether the seeds go in where it ends.
        sums: Which of its results are added up, with which weights (0 for one alone); empty: none.
    """

    graph: Replay
    transposed: bool = False
    sums: tuple[tuple[tuple[int, float], ...], ...] = ()

    def one(self, coefficients: Sequence[Tensor]) -> Pass:
        """One pass at a point, given the coefficients there."""

        def run(*seeds: Tensor) -> Tensors:
            answers: Tensors = self.graph.linear(*coefficients, *seeds)
            return tuple(_sum(answers, parts) for parts in self.sums) if self.sums else answers

        if self.transposed:
            return transposed(run, self.graph.seeds)
        return lambda seeds: run(*seeds)


def _sum(answers: Tensors, parts: tuple[tuple[int, float], ...]) -> Tensor:
    total: Tensor | None = None
    for index, weight in parts:
        part = answers[index] if weight in {0.0, 1.0} else answers[index] * weight
        total = part if total is None else total + part
    assert total is not None
    return total


def whole(structure: Structure, side: Side) -> list[Sender]:
    """Passes on a side through the whole program; none where an answer is not in it."""
    if not all(structure.program.answers):
        return []
    return [Sender(structure.to_answers, transposed=side == "forward")]
