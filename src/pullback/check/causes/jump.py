"""A discontinuity: the output jumps at this very point, and difference quotients grow like 1/h."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.probe import Probe, judged
from pullback.check.registries import cause
from pullback.check.signature import figure, place

_NEAR, _FAR = 1e-7, 1e-5


@cause("discontinuity", priority=22)
def jump(evidence: Evidence) -> Cause | None:
    """The output on both sides of the point stays apart however near one comes."""
    return judged(evidence, _judge)


def _judge(probe: Probe) -> Cause | None:
    evidence = probe.evidence
    near = probe.values(probe.steps(_NEAR)) - probe.values(probe.steps(-_NEAR))
    far = probe.values(probe.steps(_FAR)) - probe.values(probe.steps(-_FAR))
    jumps = (near.abs() > 1e-3) & ((near - far).abs() < 0.1 * near.abs())
    if not bool(torch.isfinite(near).all()) or bool((probe.open & ~jumps).any()):
        return None
    left, right = _slope(probe, -_FAR), _slope(probe, _FAR)
    slack = 1e-3 * (1 + left.abs() + right.abs())
    beside = (probe.ours >= torch.minimum(left, right) - slack) & (probe.ours <= torch.maximum(left, right) + slack)
    row, column = probe.entry(probe.open)
    steps = probe.steps(_NEAR)
    grown = near[probe.open][0] / (2 * steps[int((probe.columns == column).nonzero()[0])])
    return Cause(
        "discontinuity",
        f"{evidence.output}{place(row, evidence.output_shape)} jumps by {figure(near[probe.open][0].abs())} at "
        f"{evidence.input}{place(column, evidence.input_shape)} = {figure(evidence.at[column])}: the difference"
        f" quotient is {figure(grown)} for a step of {_NEAR:g} and grows like 1/h",
        "check it elsewhere; no derivative exists at this point"
        if bool(beside[probe.open].all())
        else "return the slope of one of the two sides",
        harmless=bool(beside[probe.open].all()),
    )


def _slope(probe: Probe, relative: float) -> Tensor:
    """The slope on one side of the point, without the point."""
    steps = probe.steps(relative)
    return (probe.values(2 * steps) - probe.values(steps)) / steps
