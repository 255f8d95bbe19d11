"""Blocks: the examples of a batch do not mix, so one pass serves them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.data.problem import Side
from pullback.data.space import Space
from pullback.strategies.base import (
    Bid,
    Facts,
    Grid,
    Refusal,
    Sink,
    Strategy,
    answer_bytes,
    like_gradient,
    overlaps,
    real_part,
    strategy,
    unit_range,
)
from pullback.strategies.sender import Sender, whole

if TYPE_CHECKING:
    from pullback.sparsity.structure import Structure

# Below this gain the reverse pass that proves independence is not worth its cost.
WORTHWHILE_GAIN = 8


@strategy
class Blocks(Strategy):
    """A seed for output element r of *every* example; the answer holds row r of every example's block.

    An example is an index into the leading dimensions that all inputs and outputs share. That examples do not
    mix is not assumed: a reverse pass seeded on some of them must leave the gradient of all others exactly zero.
    """

    name = "blocks"
    gives = frozenset({"matrix", "blocks"})

    def bid(self, facts: Facts) -> Bid | Refusal:
        if facts.columns.is_complex or facts.rows.is_complex:
            return Refusal("complex functions are built by rows or columns")
        shared = common_lead(facts.rows, facts.columns)
        if not shared:
            return Refusal("inputs and outputs share no leading dimension that could count examples")
        leads = [1] if facts.want == "blocks" or len(shared) == 1 else [len(shared), 1]
        why = ""
        for lead in leads:
            passes = min(per_example(facts.rows, lead).size, per_example(facts.columns, lead).size)
            if facts.want == "matrix" and passes * WORTHWHILE_GAIN > min(facts.rows.size, facts.columns.size):
                why = why or "too few examples to be worth the proof that they do not mix"
                continue
            why = facts.mixing(lead)
            if not why:
                return self._offer(facts, lead, math.prod(shared[:lead]))
        return Refusal(why)

    def _offer(self, facts: Facts, lead: int, examples: int) -> Bid:
        m, n = per_example(facts.rows, lead).size, per_example(facts.columns, lead).size
        # A forward pass runs the function again, so it has to save half of the passes.
        side: Side = "reverse" if m <= 2 * n or facts.no_forward() else "forward"
        return _on_side(facts, side, f"{examples} examples do not mix: one pass serves all of them", lead)

    def others(self, facts: Facts, bid: Bid) -> list[Bid]:
        return [_on_side(facts, "forward" if bid.side == "reverse" else "reverse", bid.why, bid.lead)]

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        space = facts.rows if bid.side == "reverse" else facts.columns
        seeds = per_example(space, bid.lead).onehots(unit_range(start, stop))
        return tuple(
            seed.reshape((stop - start,) + (1,) * bid.lead + seed.shape[1:]).expand(stop - start, *leaf.shape)
            for seed, leaf in zip(seeds, space.leaves, strict=True)
        )

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        blocks = self._grid_of_blocks(facts, bid, answers)
        if facts.want == "blocks":
            return torch.cat([torch.cat(row, dim=2) for row in blocks], dim=1)
        return [[_spread(block) for block in row] for row in blocks]

    def sink(self, facts: Facts, bid: Bid, grid: Grid) -> Sink:
        rows, columns = per_example(facts.rows, bid.lead), per_example(facts.columns, bid.lead)
        examples = math.prod(common_lead(facts.rows, facts.columns)[: bid.lead])
        if facts.want == "matrix":
            for targets in grid:
                for target in targets:
                    target.zero_()
        places = [[_where(target, examples) for target in targets] for targets in grid]

        def put_rows(start: int, answers: Sequence[Tensor]) -> None:
            for j, (answer, column) in enumerate(zip(answers, columns.leaves, strict=True)):
                part = answer.reshape(len(answer), examples, column.numel)
                for k, inside, here in overlaps(rows, start, start + len(answer)):
                    places[k][j][:, inside] = part[here].transpose(0, 1)

        def put_columns(start: int, answers: Sequence[Tensor]) -> None:
            for answer, row, targets in zip(answers, rows.leaves, places, strict=True):
                part = answer.reshape(len(answer), examples, row.numel)
                for j, inside, here in overlaps(columns, start, start + len(answer)):
                    targets[j][:, :, inside] = real_part(part[here]).permute(1, 2, 0)

        return put_rows if bid.side == "reverse" else put_columns

    def _grid_of_blocks(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        """``[k][j]``: the blocks of output k by input j, ``(examples, m_k, n_j)``."""
        rows, columns = per_example(facts.rows, bid.lead), per_example(facts.columns, bid.lead)
        examples = math.prod(common_lead(facts.rows, facts.columns)[: bid.lead])
        grid: Grid = []
        if bid.side == "reverse":
            flat = [
                answer.reshape(rows.size, examples, leaf.numel).transpose(0, 1)
                for answer, leaf in zip(answers, columns.leaves, strict=True)
            ]
            return [[part[:, row.slice] for part in flat] for row in rows.leaves]
        for answer, row in zip(answers, rows.leaves, strict=True):
            flat_row = answer.reshape(columns.size, examples, row.numel).permute(1, 2, 0)
            grid.append([like_gradient(real_part(flat_row[:, :, column.slice]), column) for column in columns.leaves])
        return grid


def _on_side(facts: Facts, side: Side, why: str, lead: int) -> Bid:
    """The bid to send a seed, or a tangent, for each element of an example."""
    sent, answered = (facts.rows, facts.columns) if side == "reverse" else (facts.columns, facts.rows)
    passes = per_example(sent, lead).size
    return Bid(side, passes, answer_bytes(answered, passes), why, lead)


def common_lead(rows: Space, columns: Space) -> tuple[int, ...]:
    """The leading dimensions that all leaves of two spaces share."""
    shapes = [*rows.shapes, *columns.shapes]
    if not rows.leaves or not columns.leaves:
        return ()
    lead = []
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) > 1:
            break
        lead.append(sizes[0])
    return tuple(lead)


def per_example(space: Space, lead: int) -> Space:
    """The Space of one example: the leading dimensions left out."""
    leaves = []
    offset = 0
    for leaf in space.leaves:
        leaves.append(replace(leaf, shape=leaf.shape[lead:], offset=offset))
        offset += leaves[-1].numel
    return replace(space, leaves=tuple(leaves), size=offset)


def _spread(blocks: Tensor) -> Tensor:
    """Blocks ``(examples, m, n)`` on the diagonal of a matrix ``(examples * m, examples * n)`` of zeros."""
    examples, m, n = blocks.shape
    # diag_embed makes (m, n, examples, examples), zero where the two examples differ.
    spread = torch.diag_embed(blocks.permute(1, 2, 0)).permute(2, 0, 3, 1)
    return spread.reshape(examples * m, examples * n)


def _where(target: Tensor, examples: int) -> Tensor:
    """The examples' blocks ``(examples, m, n)`` in what holds them: a stack, or the diagonal of a matrix."""
    if target.ndim == 3:
        return target
    m, n = target.shape[0] // max(examples, 1), target.shape[1] // max(examples, 1)
    return target.view(examples, m, examples, n).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
