"""Acyclic: a Hessian in yet fewer passes, its entries recovered one after another by substitution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pullback.data.coloring import SymmetricColoring
from pullback.sparsity.gather import join_passes
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, answer_bytes, strategy
from pullback.strategies.compressed import known
from pullback.strategies.star import Star

# Each level of the substitution is a step that waits for the one before.
DEEPEST = 64


@strategy
class Acyclic(Star):
    """A pass for each color of an acyclic coloring; an answer is a sum of which all but one entry are known.

    Rounding errors add up along the levels; the star coloring has none.
    """

    name = "acyclic"

    def coloring(self, structure: Structure) -> SymmetricColoring:
        return structure.acyclic

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        structure = known(facts)
        depth = structure.substitution.depth
        if depth > DEEPEST and facts.wanted != self.name:
            return Refusal(f"its entries follow one another through {depth:,} levels")
        coloring = structure.acyclic
        why = f"{coloring}; {depth} level{'s' * (depth != 1)} of substitution"
        return Bid("reverse", coloring.count, answer_bytes(facts.columns, coloring.count), why, share=SLOWER)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        plan = structure.substitution
        flat = join_passes(answers)
        values = flat.index_select(0, _indices(plan.read, flat))
        for low, high in zip(plan.step_starts[1:-1].tolist(), plan.step_starts[2:].tolist(), strict=True):
            source, target = (_indices(part[low:high], flat) for part in (plan.source, plan.target))
            values = values.index_add(0, target, -values.index_select(0, source))
        return values.index_select(0, _indices(plan.entry, flat))


# Substitution is worth one pass in three saved, not a tie.
SLOWER = 1.3


def _indices(positions: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(positions, device=like.device)
