"""Rows: one reverse pass for each output element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.strategies.base import Bid, Facts, Grid, Sink, Strategy, answer_bytes, overlaps, strategy, unit_range
from pullback.strategies.sender import Sender, whole

if TYPE_CHECKING:
    from pullback.sparsity.structure import Structure


@strategy
class Rows(Strategy):
    """Row i of J is the gradient of output i: the answer to the seed ``e_i``."""

    name = "rows"
    gives = frozenset({"matrix"})

    def bid(self, facts: Facts) -> Bid:
        m = facts.rows.size
        return Bid("reverse", m, answer_bytes(facts.columns, m), "one reverse pass for each output element")

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return facts.rows.onehots(unit_range(start, stop))

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        return split_rows(facts, answers)

    def sink(self, facts: Facts, bid: Bid, grid: Grid) -> Sink:
        return lambda start, answers: put_rows(facts, grid, start, answers)


def split_rows(facts: Facts, answers: Sequence[Tensor]) -> Grid:
    """The answers to the seeds of all output elements, as a matrix for each output and input."""
    flat = [
        answer.reshape(facts.rows.size, leaf.numel) for answer, leaf in zip(answers, facts.columns.leaves, strict=True)
    ]
    # A reverse pass gives the conjugate of the complex derivative.
    flat = [part.conj() if facts.holomorphic else part for part in flat]
    return [[part[row.slice] for part in flat] for row in facts.rows.leaves]


def put_rows(facts: Facts, grid: Grid, start: int, answers: Sequence[Tensor]) -> None:
    """Write the answers to the seeds of output elements, from a number on, over what stands in a grid."""
    count = len(answers[0])
    for k, inside, here in overlaps(facts.rows, start, start + count):
        for answer, leaf, target in zip(answers, facts.columns.leaves, grid[k], strict=True):
            part = answer.reshape(count, leaf.numel)[here]
            target[inside] = part.conj() if facts.holomorphic else part
