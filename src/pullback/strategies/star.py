"""Star: a Hessian is symmetric, so an entry may be read from its row or from its column."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.coloring import recover_direct
from pullback.data.coloring import SymmetricColoring
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, answer_bytes, strategy
from pullback.strategies.compressed import Compressed, colored_seeds, known, picked
from pullback.strategies.sender import Sender, whole


@strategy
class Star(Compressed):
    """A pass for each color of a star coloring: every entry stands alone in one of two answers."""

    name = "star"

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        if not facts.symmetric:
            return Refusal("not known to be symmetric: pb.hessian is")
        if structure.shape[0] != structure.shape[1] or (structure.pattern != structure.pattern.T).nnz:
            return Refusal("the pattern found is not symmetric")
        why = "at least two, unless the matrix is diagonal"
        return Bid("reverse", min(2, structure.row_bound), answer_bytes(facts.columns, 2), why, firm=False)

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        coloring = self.coloring(known(facts))
        return Bid("reverse", coloring.count, answer_bytes(facts.columns, coloring.count), str(coloring))

    def coloring(self, structure: Structure) -> SymmetricColoring:
        """The coloring that the passes follow."""
        return structure.star

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return colored_seeds(facts.rows, self.coloring(known(facts)).colors, start, stop)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        device = answers[0].device
        return picked(structure, self.name, lambda: recover_direct(structure.pattern, structure.star), device)(answers)
