"""A function that computes in a lower precision than its input: differences see its rounding, not its slope."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.probe import Probe, judged
from pullback.check.registries import cause
from pullback.check.signature import Block, example, figure

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_QUIET = 1e-11
# Of the points among which the noise is looked for, as a part of the input: a few roundings of each dtype.
_SPACINGS = (1.37e-7, 1.37e-5, 1.37e-3)


@cause("rounding", priority=30)
def rounding(evidence: Evidence) -> Cause | None:
    """The output is rough on the scale of a lower precision, and wide differences agree with the backward."""
    return judged(evidence, _judge)


def _judge(probe: Probe) -> Cause | None:
    evidence = probe.evidence
    if not bool(torch.isfinite(probe.middle).all()):
        return None
    scale = float(probe.middle.abs().max())
    noise, relative = probe.middle[:, None], 0.0
    for spacing in _SPACINGS:
        noise = _noise(probe, spacing)
        relative = float(noise.max()) / scale if scale else 0.0
        if relative > _QUIET:
            break
    if not _QUIET < relative < 0.1:
        return None
    step = max(relative, 1e-8) ** (1 / 3)
    near, far = probe.central(step), probe.central(2 * step)
    doubt = (near - far).abs() + 8 * noise / probe.steps(step) + 1e-6 * near.abs()
    apart = (probe.ours - near).abs()
    if bool((probe.open & (apart > 2 * doubt)).any()) or not bool((far.abs() > doubt)[probe.open].any()):
        return None
    named = min(_DTYPES, key=lambda dtype: abs(math.log(torch.finfo(dtype).eps / 4 / relative)))
    return Cause(
        f"{str(named).removeprefix('torch.')} round-off",
        f"{evidence.output} is rough: near this point it is uneven by {figure(relative)} of its size, which is the"
        f" rounding of {named}; differences with a step of {step:.1e} agree with the backward to"
        f" {figure(apart[probe.open].max())}",
        "nothing, unless float64 is meant: look for .float(), .half(), autocast or a float32 constant in the function",
        harmless=True,
    )


@cause("rounded backward", priority=31)
def rounded(evidence: Evidence) -> Cause | None:
    """All entries agree to the digits of float32: a constant or a cast in the backward."""
    block = Block.of(evidence)
    apart = (block.ours - block.numeric).abs()
    error = torch.where(torch.isfinite(evidence.error), evidence.error, 0)
    if not bool(block.told.any()) or not bool((apart > 3 * error).any()):
        return None
    single = torch.finfo(torch.float32).eps
    if bool((apart > 4 * single * block.numeric.abs() + 3 * error).any()):
        return None
    worst = float((apart / block.numeric.abs())[block.told].max())
    return Cause(
        "float32 round-off",
        f"the backward agrees with the differences to {worst:.1e} of each entry, which is the rounding of float32:"
        f" {example(evidence, block)}",
        "nothing, unless float64 is meant: look for .float(), a float32 constant or torch.tensor(0.1) in the backward",
        harmless=True,
    )


def _noise(probe: Probe, spacing: float) -> Tensor:
    """How uneven the output is along each column, by fourth differences (Moré and Wild, 2011)."""
    steps = probe.steps(spacing)
    table = torch.stack([probe.values(count * steps) for count in range(-3, 4)])
    for _ in range(4):
        table = table[1:] - table[:-1]
    return table.abs().amax(0).div(70**0.5)
