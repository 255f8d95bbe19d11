"""Columns: one forward pass for each input element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.data.space import Leaf
from pullback.strategies.base import (
    Bid,
    Facts,
    Grid,
    Strategy,
    answer_bytes,
    like_gradient,
    real_part,
    strategy,
    unit_range,
)


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

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return tangents(facts, start, stop)

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        return [
            [column_block(facts, answer.reshape(len(answer), row.numel), column).mT for column in facts.columns.leaves]
            for answer, row in zip(answers, facts.rows.leaves, strict=True)
        ]


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
