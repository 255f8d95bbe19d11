"""Rows: one reverse pass for each output element."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.strategies.base import Bid, Facts, Grid, Strategy, answer_bytes, strategy, unit_range


@strategy
class Rows(Strategy):
    """Row i of J is the gradient of output i: the answer to the seed ``e_i``."""

    name = "rows"
    gives = frozenset({"matrix"})

    def bid(self, facts: Facts) -> Bid:
        m = facts.rows.size
        return Bid("reverse", m, answer_bytes(facts.columns, m), "one reverse pass for each output element")

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return facts.rows.onehots(unit_range(start, stop))

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        flat = [
            answer.reshape(facts.rows.size, leaf.numel)
            for answer, leaf in zip(answers, facts.columns.leaves, strict=True)
        ]
        # A reverse pass gives the conjugate of the complex derivative.
        flat = [part.conj() if facts.holomorphic else part for part in flat]
        return [[part[row.slice] for part in flat] for row in facts.rows.leaves]
