"""The gradient in the inputs' own dtype, held against the one in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pullback.check.function import Function, pack, unpack
from pullback.check.report import Finding
from pullback.check.tolerances import perturbed, roundings
from pullback.words import dtype_name

# Fewer digits than this are not worth a word.
WORTH_A_WORD = 2.0


def compare_dtypes(own: Function, exact: Function, generator: torch.Generator) -> tuple[str, list[Finding]]:
    """How many digits the gradient keeps in its own dtype, and whether rounding explains that.

    The gradient in float64 is looked at again where inputs and seed are moved by one roundoff ε of the own dtype; how
    far it moves, and ε times itself, is what one rounding does. ``κ`` roundings, one for each operation forward and
    backward and ``log2 N`` for sums of N terms, explain κ times as much.

    Returns:
        A line that says so, and what is wrong.
    """
    eps = own.roundoff
    u = torch.randn(exact.y.shape, generator=generator, dtype=torch.float64).to(exact.y.device)
    u = pack(unpack(u, own.outputs))  # as the own dtype can hold it
    recorded = own.recorded
    found, truth = own.pull(u, recorded), exact.pull(u, exact.recorded)
    x = perturbed(exact.x, eps, generator)
    moved = exact.pull(perturbed(u, eps, generator), exact.record(unpack(x, exact.points))) - truth
    kappa = roundings(recorded.operations, max(exact.x.numel(), exact.y.numel()))
    findings, worst = [], 0.0
    for (name, where), point in zip(exact.columns.items(), own.points, strict=True):
        ours, right = found[where], truth[where]
        known = right.isfinite()
        if bool((known & ~ours.isfinite()).any()):
            findings.append(_overflow(name, ours, point.dtype))
            continue
        natural = float((u * exact.natural).norm()) / (float(exact.x[where].abs().mean()) or 1.0)
        size, apart = float(right[known].norm()), float((ours - right)[known].norm())
        # What vanishes in exact arithmetic is the rounding error of terms of the natural size.
        explained = kappa * (float(moved[where][known].nan_to_num(0, 0, 0).norm()) + eps * (size + natural))
        unit = eps * max(size, natural)
        lost = max(0.0, math.log10(apart / unit)) if unit and apart else 0.0
        worst = max(worst, lost)
        if apart > explained + torch.finfo(own.points[0].dtype).tiny * math.sqrt(ours.numel()):
            findings.append(_worse(name, lost, eps, apart, explained))
        elif lost >= WORTH_A_WORD:
            findings.append(_rounding(name, lost, eps))
    dtypes = ", ".join(sorted({dtype_name(point.dtype) for point in own.points}))
    return f"{dtypes} against float64: {worst:.1f} of {-math.log10(eps):.1f} digits lost", findings


def _rounding(name: str, lost: float, eps: float) -> Finding:
    return Finding(
        "rounding",
        f"the gradient by {name} loses {lost:.1f} of {-math.log10(eps):.1f} digits in its own dtype; its conditioning "
        "explains that",
        "compute this part in float64, or write it in a way that cancels less",
        harmless=True,
        input=name,
    )


def _worse(name: str, lost: float, eps: float, apart: float, explained: float) -> Finding:
    return Finding(
        "loses digits",
        f"the gradient by {name} loses {lost:.1f} of {-math.log10(eps):.1f} digits in its own dtype: it is off by "
        f"{apart:.1e}, and rounding explains {explained:.1e}",
        "look for a cast to a coarser dtype, a difference of large numbers, or a formula that is right in float64 only",
        input=name,
    )


def _overflow(name: str, ours: Tensor, dtype: torch.dtype) -> Finding:
    count = int((~ours.isfinite()).sum())
    return Finding(
        "not finite in its own dtype",
        f"{count} of {ours.numel()} entries of the gradient by {name} are inf or NaN in {dtype}, and finite in float64",
        "scale the loss or the inputs, or compute this part in float32 or float64",
        input=name,
    )
