"""Colored columns: columns of J that share no row share a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.coloring import recover_direct
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, answer_bytes, strategy
from pullback.strategies.compressed import Compressed, colored_seeds, known, picked
from pullback.strategies.sender import Sender, whole


@strategy
class ColoredColumns(Compressed):
    """A tangent for each color of columns; entry (i, j) stands in the answer to the color of column j, at i."""

    name = "colored-columns"

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        if facts.rows.is_complex or facts.columns.is_complex:
            return Refusal("complex functions are built by rows")
        bound = structure.column_bound
        why = f"no fewer than {bound}: a row has so many nonzeros"
        return Bid("forward", bound, answer_bytes(facts.rows, bound), why, firm=False)

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        count = known(facts).columns.count
        return Bid("forward", count, answer_bytes(facts.rows, count), f"one for each color: {known(facts).columns}")

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return colored_seeds(facts.columns, known(facts).columns.colors, start, stop)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        gather = picked(
            structure, self.name, lambda: recover_direct(structure.pattern, structure.columns), answers[0].device
        )
        return gather(answers)
