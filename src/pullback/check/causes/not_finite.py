"""A NaN or an inf in the gradient of a function that is smooth there: 0/0, inf - inf, 0 times inf."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import example, figure, place, several


@cause("NaN or inf", priority=10)
def not_finite(evidence: Evidence) -> Cause | None:
    """Reverse mode is not finite where differences are.

    Where an element has no derivative, ``0 · inf`` makes NaN of the other entries of its column: those are no mistake.
    """
    settled = torch.isfinite(evidence.numeric)
    bad = ~torch.isfinite(evidence.ours) & settled
    smooth = bad & settled.all(0)
    if not bool(bad.any()):
        return None
    which = smooth if bool(smooth.any()) else bad
    count = int(which.sum())
    row, column = which.nonzero()[0].tolist()
    kind = "NaN" if bool(torch.isnan(evidence.ours[row, column])) else "inf"
    text = (
        f"{several(count, 'entry')} of the gradient of {evidence.output} by {evidence.input} "
        f"{'is' if count == 1 else 'are'} not finite: {example(evidence, at=(row, column))}, at "
        f"{evidence.input}{place(column, evidence.input_shape)} = {figure(evidence.at[column])}, "
        f"{evidence.output}{place(row, evidence.output_shape)} = {figure(evidence.value[row])}"
    )
    if not bool(smooth.any()):
        return Cause(
            f"{kind} beside an element without derivative",
            f"{text}; another output has no finite derivative there, and 0 times that is NaN",
            "check it elsewhere; where such elements are masked afterwards, mask before the operation instead",
            harmless=True,
        )
    return Cause(
        f"{kind} at a kink" if _bends(evidence, row, column) else f"{kind} where the derivative is finite",
        text,
        "mask before the operation that has no derivative there: f(torch.where(ok, x, 1.0)), then torch.where(ok, y,"
        " 0.0); a where after it only multiplies the NaN by 0. For a norm at 0: the subgradient 0",
    )


def _bends(evidence: Evidence, row: int, column: int) -> bool:
    """Whether an output has other slopes on the two sides of an element."""
    step = 1e-5 * max(1.0, float(evidence.at[column].abs()))
    values = []
    for move in (-step, 0.0, step):
        moved = evidence.at.detach().clone()
        moved[column] += move
        values.append(evidence.f(moved).detach()[row])
    left, right = values[1] - values[0], values[2] - values[1]
    return bool((right - left).abs() > 1e-2 * (left.abs() + right.abs()))
