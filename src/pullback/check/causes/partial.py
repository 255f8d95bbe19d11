"""A part of the derivative that is missing: elements, steps of a recursion, or a path through a sum."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, several, shared_leading

_MOST = 1024


@cause("lost accumulation", priority=73)
def lost(evidence: Evidence) -> Cause | None:
    """Elements that are read several times get the gradient of one of the readings."""
    block = Block.of(evidence)
    if not _zero_or_right(block):
        return None
    gone = block.wrong.any(1)
    read = block.told.sum(0)
    if bool((block.told.sum(1) > 1).any()) or not bool((read > 1).any()) or not bool((read[_hit(block)] > 1).all()):
        return None
    kept = (block.ours_told & block.told).any(0)
    if not bool(kept[_hit(block)].all()):
        return None
    return Cause(
        "lost accumulation",
        f"{several(int(_hit(block).sum()), 'element')} of {evidence.input} are read more than once, and "
        f"{several(int(gone.sum()), 'reading')} do not count: {example(evidence, block)}",
        "accumulate: index_add_, scatter_add_ or index_put_(..., accumulate=True) in place of an assignment",
    )


@cause("detached part", priority=74)
def part(evidence: Evidence) -> Cause | None:
    """Every entry is right or 0."""
    block = Block.of(evidence)
    if not _zero_or_right(block):
        return None
    return Cause(
        "detached path",
        f"{several(int(block.wrong.sum()), 'entry')} of {int(block.told.sum()):,} are 0, the others are right"
        f"{_where(evidence, block)}: {example(evidence, block)}",
        "look for a detach, a mask, a slice or a truncated loop that leaves them out",
    )


@cause("detached sum", priority=78)
def path(evidence: Evidence) -> Cause | None:
    """What is missing has a rank of one or two for each example: it goes through one or two numbers, as a mean."""
    block = Block.of(evidence)
    if max(block.numeric.shape) > _MOST or not bool(block.wrong.any()):
        return None
    for count, ours, numeric in shared_leading(evidence, block):
        rank = _missing_rank(ours, numeric)
        if rank is not None:
            kept = " that the backward has on the diagonal only" if _diagonal_only(block) else ""
            each = f" in each of {count} examples" if count > 1 else ""
            return Cause(
                "detached path",
                f"what is missing has rank {rank}{each}, in a Jacobian of rank {_rank(numeric)}{kept}: a path"
                f" through {several(rank, 'number')}, such as a sum, a mean, a maximum or a norm, is left out; "
                f"{example(evidence, block)}",
                "differentiate what the elements are normalised by too",
            )
    return None


def _diagonal_only(block: Block) -> bool:
    """Whether reverse mode has no entry beside the diagonal."""
    told = block.ours_told
    return block.square and bool((told.diagonal().sum() == told.sum()).all())


def _missing_rank(ours: Tensor, numeric: Tensor) -> int | None:
    rows, columns = ours.shape[1:]
    missing = numeric - ours
    scale = float(numeric.abs().max())
    touched = missing.abs() > 1e-5 * scale
    if min(int(touched.any(2).sum(1).min()), int(touched.any(1).sum(1).min())) < 3:
        return None
    rank = _rank(missing)
    full = min(_rank(numeric), _rank(ours))
    return rank if 1 <= rank <= 2 and full >= rank + 1 and min(rows, columns) >= rank + 2 else None


def _rank(blocks: Tensor) -> int:
    """The largest rank of the blocks, as far as differences can tell."""
    values = torch.linalg.svdvals(blocks)
    return int((values > 1e-5 * values.max()).sum(-1).max())


def _zero_or_right(block: Block) -> bool:
    """Whether all wrong entries are 0 by reverse mode, and others are not."""
    if not bool(block.wrong.any()) or not bool((block.right & block.told).any()):
        return False
    return bool((block.ours.abs() <= block.slack)[block.wrong].all())


def _hit(block: Block) -> Tensor:
    return block.wrong.any(0)


def _where(evidence: Evidence, block: Block) -> str:
    """Which ones, if they are all of some inputs, or all off the diagonal."""
    columns = block.wrong.any(0)
    if not bool((block.told & block.right)[:, columns].any()):
        return f": all those of {int(columns.sum())} of {columns.numel()} elements of {evidence.input}"
    rows = block.wrong.any(1)
    if not bool((block.told & block.right)[rows].any()):
        return f": all those of {int(rows.sum())} of {rows.numel()} elements of {evidence.output}"
    return ", those off the diagonal" if _diagonal_only(block) else ""
