"""A backward that gives other numbers the second time: it changes what it keeps, or it is random."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, figure, place


@cause("backward that is not repeatable", priority=15)
def not_repeatable(evidence: Evidence) -> Cause | None:
    """The same block, computed again, is another one."""
    block = Block.of(evidence)
    first, second = evidence.ours.detach(), evidence.rerun().detach()
    changed = _apart(first, second, block)
    if not bool(changed.any()):
        return None
    row, column = changed.nonzero()[0].tolist()
    seen = f"{figure(first[row, column])}, then {figure(second[row, column])}"
    where = (
        f"d {evidence.output}{place(row, evidence.output_shape)} / d {evidence.input}"
        f"{place(column, evidence.input_shape)} is {seen} at the second pass, and "
        f"{figure(evidence.numeric[row, column])} by differences"
    )
    if _follows(first, second, [evidence.rerun().detach() for _ in range(8 if first.numel() <= 64 else 2)], block):
        return Cause(
            "backward changes what it keeps",
            where + "; each pass starts from what the last one left behind",
            "no in-place operation (mul_, clamp_, x[...] = ...) on an input, a saved tensor or the incoming gradient:"
            " clone first",
        )
    return Cause(
        "nondeterministic backward",
        where,
        "save the random numbers (a dropout mask, noise) in forward with ctx.save_for_backward and use the same ones in"
        " backward",
    )


def _apart(first: Tensor, second: Tensor, block: Block) -> Tensor:
    gap = (first - second).abs()
    return torch.isfinite(gap) & (gap > 1e-9 * first.abs() + block.slack * 1e-3)


def _follows(first: Tensor, second: Tensor, later: list[Tensor], block: Block) -> bool:
    """Whether each pass is to the one before it what the second is to the first, or nothing changes any more."""
    passes = [first, second, *later]
    if all(bool(((each - second).abs() <= block.slack).all()) for each in later):
        return True
    factor = float((second.conj() * first).sum().abs() / first.abs().square().sum().clamp(min=1e-300))
    for before, after in itertools.pairwise(passes):
        bound = 1e-6 * after.abs().max()
        if not bool(((after - before - (second - first)).abs() <= bound).all()) and not bool(
            ((after - factor * before).abs() <= bound).all()
        ):
            return False
    return True
