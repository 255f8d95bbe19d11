"""Bidirectional: the few dense rows by reverse passes, the rest by forward passes, and every mixture between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pullback.coloring import recover_bidirectional
from pullback.data.problem import Side
from pullback.sparsity.gather import Gather, join_passes
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, answer_bytes, strategy
from pullback.strategies.compressed import Compressed, colored_seeds, known

# With fewer passes on one side there is nothing to gain by using both.
WORTH_BOTH = 8


@strategy
class Bidirectional(Compressed):
    """Colored rows and colored columns together: each entry stands alone in an answer of its row or its column."""

    name = "bidirectional"

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        if facts.rows.is_complex or facts.columns.is_complex:
            return Refusal("complex functions are built by rows")
        if min(structure.row_bound, structure.column_bound) < WORTH_BOTH and facts.wanted != self.name:
            return Refusal("one side alone takes few passes")
        bound = structure.bidirectional_bound
        why = f"no fewer than {bound} on both sides together"
        return Bid("reverse", bound, answer_bytes(facts.columns, bound), why, firm=False)

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        found = known(facts).bidirectional
        if not found.row_count or not found.column_count:
            return Refusal("one side alone takes as few passes")
        size = answer_bytes(facts.columns, found.row_count) + answer_bytes(facts.rows, found.column_count)
        sides: tuple[tuple[Side, int], ...] = (("reverse", found.row_count), ("forward", found.column_count))
        return Bid("reverse", found.count, size, str(found), split=sides)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        found = known(facts).bidirectional
        if start < found.row_count:
            return colored_seeds(facts.rows, found.row_colors, start, stop)
        return colored_seeds(facts.columns, found.column_colors, start - found.row_count, stop - found.row_count)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        device, count = facts.columns.device, len(facts.columns.leaves)
        key = self.name, device
        if key not in structure.gathers:
            side, place = recover_bidirectional(structure.pattern, structure.bidirectional)
            rows = structure.bidirectional.row_count * facts.columns.size
            structure.gathers[key] = Gather.of(np.where(side == 0, place, rows + place), device)
        by_rows, by_columns = join_passes(answers[:count]), join_passes(answers[count:])
        together = torch.cat([by_rows, by_columns.to(dtype=by_rows.dtype, device=device)])
        return structure.gathers[key]([together[None]])
