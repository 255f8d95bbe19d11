"""No NaN where the function has a kink: a norm, or a root of a square, at 0 has slopes on both sides."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial

_MOST = 4


@behaviour("no NaN at a kink")
def finite(subject: Subject) -> Iterator[Problem]:
    """Where the gradient is NaN, the slopes to the left and to the right are not both finite."""
    trial = Trial.of(subject)
    if not all(bool(torch.isfinite(output).all()) for output in trial.outputs):
        return
    seeds = trial.seeds(subject)
    for position, (name, gradient) in enumerate(zip(subject.wrt, trial.pull(seeds), strict=True)):
        if gradient is None or gradient.is_complex():
            continue
        elements = torch.isnan(gradient).flatten().nonzero().flatten()[:_MOST].tolist()
        found = [(each, slopes) for each in elements if (slopes := _slopes(subject, trial, seeds, position, each))]
        if found:
            element, (left, right) = found[0]
            at = float(trial.leaves[position].detach().flatten()[element])
            yield Problem(
                "NaN at a kink" if abs(left - right) > 1e-2 * (abs(left) + abs(right)) else "NaN",
                f"the gradient by {name} is NaN at {int(torch.isnan(gradient).sum())} elements; at the first, {at:g},"
                f" a random sum of the outputs has slope {left:.4g} to the left and {right:.4g} to the right",
                "return a value between the two slopes, 0 for a norm: mask before the division, with torch.where",
            )


def _slopes(
    subject: Subject, trial: Trial, seeds: tuple[Tensor, ...], position: int, element: int
) -> tuple[float, float] | None:
    """The slopes of ⟨seeds, f⟩ on both sides along one element, if two steps agree on them."""
    leaf = trial.leaves[position].detach()
    step = torch.finfo(leaf.dtype).eps ** (1 / 3) * max(1.0, float(leaf.flatten()[element].abs()))

    def value(move: float) -> float:
        points = [each.detach().clone() for each in trial.leaves]
        points[position].view(-1)[element] += move
        with torch.no_grad():
            outputs = Trial.of(subject, Tensor.clone, points).outputs
        return sum(float((s.conj() * o.detach()).real.sum()) for s, o in zip(seeds, outputs, strict=True))

    middle = value(0.0)
    slopes = []
    for sign in (-1.0, 1.0):
        coarse, fine = ((value(sign * h) - middle) / (sign * h) for h in (8 * step, step))
        if not abs(coarse - fine) <= 1e-2 * (1 + abs(fine)):
            return None
        slopes.append(fine)
    return slopes[0], slopes[1]
