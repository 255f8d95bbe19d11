"""A kink: abs and relu at 0, max at a tie, clamp at its bounds. Any slope between those of both sides is right."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.probe import Probe, judged
from pullback.check.registries import cause
from pullback.check.signature import figure, place, several

_COARSE, _FINE, _FINEST = 1e-4, 1e-5, 1e-8


@cause("kink", priority=24)
def kink(evidence: Evidence) -> Cause | None:
    """The slopes of both sides exist, and are not the same."""
    return judged(evidence, _judge)


def _judge(probe: Probe) -> Cause | None:
    evidence = probe.evidence
    left, right = probe.side(-_FINE), probe.side(_FINE)
    scale = left.abs() + right.abs() + 1e-8
    settled = (probe.side(-_COARSE) - left).abs() + (probe.side(_COARSE) - right).abs() < 1e-3 * scale
    if bool((settled & ((left - right).abs() > 1e-2 * scale))[probe.open].all()):
        return _at(evidence, probe, left, right, 1e-4 * scale)
    return _near(evidence, probe)


def _at(evidence: Evidence, probe: Probe, left: Tensor, right: Tensor, slack: Tensor) -> Cause:
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    outside = probe.open & ((probe.ours < low - slack) | (probe.ours > high + slack))
    wrong = bool(outside.any())
    which = outside if wrong else probe.open
    row, column = probe.entry(which)
    text = (
        f"{several(int(which.sum()), 'entry')} at a kink: d {evidence.output}{place(row, evidence.output_shape)} / d "
        f"{evidence.input}{place(column, evidence.input_shape)} is {figure(left[which][0])} from the left and "
        f"{figure(right[which][0])} from the right at {figure(evidence.at[column])}, "
        f"{figure(probe.ours[which][0])} by the backward"
    )
    if wrong:
        return Cause(
            "kink handled wrongly",
            text + ", which is not between them",
            "return one of the two slopes, or a value between them; see whether the mask uses > where >= is meant",
        )
    return Cause("kink", text + ", which is between them", "nothing: any of these is a subgradient", harmless=True)


def _near(evidence: Evidence, probe: Probe) -> Cause | None:
    """The differences step over a kink or a bend that is too near for them; with a smaller step they agree."""
    finest = probe.central(_FINEST)
    scale = 1 + float(probe.middle.abs().max())
    agrees = (finest - probe.ours).abs() < 1e-5 * (scale + probe.ours.abs())
    coarse = probe.central(_COARSE)
    moved = (coarse - finest).abs() > 1e-4 * (scale + probe.ours.abs())
    if not bool((agrees & moved)[probe.open].all()):
        return None
    row, column = probe.entry(probe.open)
    return Cause(
        "kink nearby",
        f"{several(int(probe.open.sum()), 'entry')} next to a kink or a sharp bend: d {evidence.output}"
        f"{place(row, evidence.output_shape)} / d {evidence.input}{place(column, evidence.input_shape)} is "
        f"{figure(coarse[probe.open][0])} by differences with a step of {_COARSE:g}, {figure(finest[probe.open][0])}"
        f" with {_FINEST:g} and {figure(probe.ours[probe.open][0])} by the backward",
        "nothing: the backward agrees with the differences that are fine enough",
        harmless=True,
    )
