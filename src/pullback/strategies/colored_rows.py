"""Colored rows: rows of J that share no column share a reverse pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.coloring import recover_direct
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, answer_bytes, strategy
from pullback.strategies.compressed import Compressed, colored_seeds, known, picked
from pullback.strategies.sender import Sender, whole


@strategy
class ColoredRows(Compressed):
    """A seed for each color of rows; entry (i, j) stands in the answer to the color of row i, at j."""

    name = "colored-rows"

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        bound = structure.row_bound
        why = f"no fewer than {bound}: a column has so many nonzeros"
        return Bid("reverse", bound, answer_bytes(facts.columns, bound), why, firm=False)

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        count = known(facts).rows.count
        return Bid("reverse", count, answer_bytes(facts.columns, count), f"one for each color: {known(facts).rows}")

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return colored_seeds(facts.rows, known(facts).rows.colors, start, stop)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        gather = picked(
            structure, self.name, lambda: recover_direct(structure.pattern, structure.rows), answers[0].device
        )
        values = gather(answers)
        return values.conj() if facts.holomorphic else values
