"""Right for some values of the input and wrong for an interval of them: a mask, a bound, a branch."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, diagonal, example, figure, several


@cause("wrong branch", priority=67)
def branch(evidence: Evidence) -> Cause | None:
    """An elementwise function whose gradient is off by one factor in an interval of its input, and right outside."""
    block = Block.of(evidence)
    if not diagonal(block) or evidence.at.is_complex():
        return None
    wrong, right = block.wrong.diagonal(), block.right.diagonal()
    ours, numeric = block.ours.diagonal(), block.numeric.diagonal()
    if int(wrong.sum()) < 2 or int(right.sum()) < 2 or not _interval(evidence.at, wrong):
        return None
    kind = _kind(ours[wrong], numeric[wrong], block.slack.diagonal()[wrong])
    if kind is None:
        return None
    low, high = figure(evidence.at[wrong].min()), figure(evidence.at[wrong].max())
    return Cause(
        "wrong mask" if "0" in kind.split() else "wrong branch",
        f"for {evidence.input} from {low} to {high}, {several(int(wrong.sum()), 'entry')}, {kind}; the other "
        f"{several(int(right.sum()), 'entry')} are right: {example(evidence, block)}",
        "make the masks of forward and backward the same: their bounds, < against <=, and the variable they look at",
    )


def _interval(at: Tensor, wrong: Tensor) -> bool:
    """Whether the wrong ones, or the right ones, lie side by side when sorted by the input."""
    ordered = wrong[at.argsort()]
    return int((ordered[1:] != ordered[:-1]).sum()) <= 2


def _kind(ours: Tensor, numeric: Tensor, slack: Tensor) -> str | None:
    if bool((ours.abs() <= slack).all()):
        return "the backward is 0 where the differences are not"
    if bool((numeric.abs() <= slack).all()):
        return "the differences are 0 where the backward is not"
    factor = ours / numeric
    if bool(torch.isfinite(factor).all()) and bool(((factor - factor[0]).abs() < 1e-4 * factor[0].abs()).all()):
        return f"the backward is {figure(factor[0])} times the differences"
    return None
