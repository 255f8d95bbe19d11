"""Positions: which rows or columns an index means."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ValueMismatch


def positions_of(index: Any, size: int, what: str) -> tuple[Tensor, bool]:
    """An index into rows or columns as flat positions, and whether it was a single one."""
    if isinstance(index, slice):
        chosen = range(size)[index]
        return torch.arange(len(chosen)) * chosen.step + chosen.start, False
    single = False
    if isinstance(index, Tensor) and (index.dtype == torch.bool or index.is_floating_point() or index.ndim > 1):
        raise ArgumentError(
            f"a {what} index is an int, a slice, or a sequence of ints",
            got=f"a tensor of {index.dtype} and shape {tuple(index.shape)}",
            fix="mask.nonzero().flatten() for a mask",
        )
    if isinstance(index, Tensor):
        single = index.ndim == 0
        positions = index.detach().cpu().long().reshape(-1)
    else:
        try:
            try:
                positions, single = torch.tensor([operator.index(index)]), True
            except TypeError:
                positions = torch.tensor([operator.index(each) for each in index], dtype=torch.long)
        except TypeError:
            raise ArgumentError(
                f"a {what} index is an int, a slice, or a sequence of ints",
                got=repr(index),
                fix=f"J.{what}s(0), J.{what}s([0, 2]) or J.{what}s(slice(0, 10))",
            ) from None
    if len(positions) and not (-size <= int(positions.min()) and int(positions.max()) < size):
        raise ValueMismatch(f"{what} index out of range", got=f"{index!r} for {size} {what}s", fix=f"0 to {size - 1}")
    return torch.where(positions < 0, positions + size, positions), single


def ranges_of(sizes: list[int], keep: tuple[int, ...]) -> Tensor:
    """The positions of some of the parts laid end to end."""
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([torch.arange(int(starts[i]), int(starts[i + 1])) for i in keep])
