"""The rows of the Jacobian of several losses by shared parameters; their Gram matrix and their mixtures.

A row stays what its pass returned, one gradient for each parameter. The matrix is made only for who asks for it: a Gram
matrix is a sum over some columns at a time, and a mixture takes the place of the rows that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# So many entries of the matrix at a time stay inside a processor's caches; elsewhere a call costs more than memory.
ENTRIES_ON_CPU, ENTRIES = 2**17, 2**24
# Gradients of fewer elements are mixed together, since each would cost more in calls than in numbers.
SMALL = 2**14

Row = list[Tensor | None]


def gram_of(rows: Sequence[Row], indices: Sequence[int], device: torch.device) -> Tensor:
    """``J Jᵀ`` by some parameters, ``(m, m)``, in at least single precision.

    Args:
        rows: For each loss its gradient by every parameter, None where it is zero.
        indices: Which parameters; each is reached by at least one loss.
        device: Where the result is to be.
    """
    parts = [(columns @ columns.mT).to(device) for columns in _columns(rows, indices)]
    dtype = max((part.dtype for part in parts), key=lambda each: torch.finfo(each).bits)
    return parts[0] if len(parts) == 1 else torch.stack([part.to(dtype) for part in parts]).sum(dim=0)


def matrix_of(rows: Sequence[Row], indices: Sequence[int], device: torch.device) -> Tensor:
    """J by some parameters, in their order, ``(m, n)``, in at least single precision."""
    parts = [_side_by_side(rows, [index]) for index in indices]
    dtype = max((part.dtype for part in parts), key=lambda each: torch.finfo(each).bits)
    return torch.cat([part.to(device=device, dtype=dtype) for part in parts], dim=1)


def mix(rows: Sequence[Row], indices: Sequence[int], weights: Sequence[float]) -> dict[int, Tensor]:
    """``wᵀJ`` by some parameters, by index; the rows are let go of on the way."""
    small = [index for index in indices if _is_small([row[index] for row in rows])]
    mixed = dict(zip(small, _mixed_together(rows, small, weights), strict=True)) if small else {}
    for index in indices:
        if index not in mixed:
            mixed[index] = _mixed_alone(rows, index, weights)
    return mixed


def _is_small(parts: Sequence[Tensor | None]) -> bool:
    return all(
        part is not None and part.numel() < SMALL and part.itemsize > 2 and part.layout is torch.strided
        for part in parts
    )


def _mixed_together(rows: Sequence[Row], indices: Sequence[int], weights: Sequence[float]) -> list[Tensor]:
    """Mixtures by parameters that every loss reaches."""
    found: list[Tensor] = []
    for row, weight in zip(rows, weights, strict=True):
        parts = [part for index in indices if (part := row[index]) is not None]
        if found:
            torch._foreach_add_(found, parts, alpha=weight)
        else:
            found = list(torch._foreach_mul(parts, weight))
        for index in indices:
            row[index] = None
    return found


def _mixed_alone(rows: Sequence[Row], index: int, weights: Sequence[float]) -> Tensor:
    parts = [row[index] for row in rows]
    for row in rows:
        row[index] = None
    # A parameter may be used sparsely by one loss and densely by another.
    same = len({part.layout for part in parts if part is not None}) == 1
    found, dtype = None, None
    for weight in weights:
        part = parts.pop(0)
        if part is not None:
            dtype, term = part.dtype, part if same else _dense(part)
            found = precise(term) * weight if found is None else found.add_(term, alpha=weight)
    assert found is not None
    return found.to(dtype)


def precise(values: Tensor) -> Tensor:
    """The same numbers in at least single precision."""
    return values.float() if values.dtype in {torch.float16, torch.bfloat16} else values


def _columns(rows: Sequence[Row], indices: Sequence[int]) -> Iterator[Tensor]:
    """The matrix, some columns at a time: of several small parameters, or a piece of a large one."""
    waiting: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    taken: dict[tuple[torch.dtype, torch.device], int] = {}
    for index in indices:
        like = next(part for row in rows if (part := row[index]) is not None)
        width = (ENTRIES_ON_CPU if like.device.type == "cpu" else ENTRIES) // len(rows)
        key = like.dtype, like.device
        if like.numel() > width:
            yield from _pieces([row[index] for row in rows], like, width)
            continue
        if waiting.get(key) and taken[key] + like.numel() > width // 4:
            yield _side_by_side(rows, waiting.pop(key))
        taken[key] = taken[key] + like.numel() if waiting.get(key) else like.numel()
        waiting.setdefault(key, []).append(index)
    for group in waiting.values():
        yield _side_by_side(rows, group)


def _pieces(parts: Sequence[Tensor | None], like: Tensor, width: int) -> Iterator[Tensor]:
    flat = [None if part is None else _dense(part).reshape(-1) for part in parts]
    for start in range(0, like.numel(), width):
        stop = min(start + width, like.numel())
        zero = torch.zeros(stop - start, dtype=like.dtype, device=like.device)
        yield precise(torch.stack([zero if part is None else part[start:stop] for part in flat]))


def _side_by_side(rows: Sequence[Row], group: Sequence[int]) -> Tensor:
    """The columns of some parameters."""
    likes = [next(part for row in rows if (part := row[index]) is not None) for index in group]
    every = [
        _dense(torch.zeros_like(like) if (part := row[index]) is None else part).reshape(-1)
        for row in rows
        for index, like in zip(group, likes, strict=True)
    ]
    return precise(torch.cat(every).view(len(rows), -1))


def _dense(part: Tensor) -> Tensor:
    return part if part.layout is torch.strided else part.to_dense()
