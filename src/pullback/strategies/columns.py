"""Columns: one forward pass for each input element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.data.space import Leaf
from pullback.strategies.base import (
    Bid,
    Facts,
    Grid,
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


@strategy
class Columns(Strategy):
    """Column j of J is the change of the outputs along input j: the answer to the tangent ``e_j``."""

    name = "columns"
    gives = frozenset({"matrix"})

    def bid(self, facts: Facts) -> Bid:
        n = facts.real_columns
        why = "one forward pass for each input element"
        if n != facts.columns.size:
            why = "two forward passes for each complex input element: along 1 and along i"
        return Bid("forward", n, answer_bytes(facts.rows, n), why)

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return [] if facts.columns.is_complex or facts.rows.is_complex else whole(structure, bid.side)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return tangents(facts, start, stop)

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        return [
            [column_block(facts, answer.reshape(len(answer), row.numel), column).mT for column in facts.columns.leaves]
            for answer, row in zip(answers, facts.rows.leaves, strict=True)
        ]

    def sink(self, facts: Facts, bid: Bid, grid: Grid) -> Sink:
        n = facts.columns.size

        def put(start: int, answers: Sequence[Tensor]) -> None:
            count = len(answers[0])
            for answer, row, targets in zip(answers, facts.rows.leaves, grid, strict=True):
                flat = answer.reshape(count, row.numel).mT
                for j, inside, here in overlaps(facts.columns, start, start + count):
                    split = facts.columns.leaves[j].dtype.is_complex and not facts.holomorphic
                    target = targets[j].real if split else targets[j]
                    target[:, inside] = flat[:, here] if facts.holomorphic else real_part(flat[:, here])
                for j, inside, here in overlaps(facts.columns, start - n, start - n + count):
                    if facts.columns.leaves[j].dtype.is_complex:
                        targets[j].imag[:, inside] = real_part(flat[:, here])

        return put


def tangents(facts: Facts, start: int, stop: int) -> tuple[Tensor, ...]:
    """The unit tangents ``start`` to ``stop``: first along 1, then along i where an input is complex."""
    n = facts.columns.size
    parts = []
    if start < n:
        parts.append(facts.columns.onehots(unit_range(start, min(stop, n))))
    if stop > n:
        turned = facts.columns.onehots(unit_range(max(start - n, 0), stop - n))
        parts.append(tuple(seed * 1j if seed.is_complex() else seed * 0 for seed in turned))
    return tuple(torch.cat(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*parts, strict=True))


def column_block(facts: Facts, answer: Tensor, column: Leaf) -> Tensor:
    """The flat answers to one input's tangents as ``(elements of the input, elements of the output)``.

    For a function that is not holomorphic the entry is torch's: ``∂Re y/∂Re x + i ∂Re y/∂Im x``.
    """
    first = answer[column.slice]
    if facts.holomorphic:
        return like_gradient(first, column)
    if not column.dtype.is_complex:
        return like_gradient(real_part(first), column)
    n = facts.columns.size
    second = answer[n + column.offset : n + column.offset + column.numel]
    real, imaginary = (real_part(part).to(column.dtype.to_real()) for part in (first, second))
    return like_gradient(torch.complex(real, imaginary), column)
