"""Second derivatives: right, or refused. A backward on .data, detached tensors or numpy loses them without a word."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.autodiff.reach import nodes
from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, function_class, largest_gap, name_of

_STEP = 1e-3


@behaviour("double backward")
def double_backward(subject: Subject) -> Iterator[Problem]:
    """The gradient of a custom Function depends on its input, by autograd too if it does by numbers."""
    trial = Trial.of(subject)
    custom = sorted({name_of(node) for node in trial.custom()})
    if not custom and function_class(subject) is None:
        return
    seeds = [seed.requires_grad_() for seed in trial.seeds(subject)]
    try:
        with torch.enable_grad():
            gradients = trial.pull(seeds, create_graph=True)
    except RuntimeError:  # torch refuses: that is an answer
        return
    if any("Error" in node.name() for node in nodes([each for each in gradients if each is not None])):
        return  # once_differentiable: it says so when asked
    moving = [(i, each) for i, each in enumerate(gradients) if each is not None and bool((each != 0).any())]
    if not moving:
        return
    names = list(subject.wrt)
    lost = [names[i] for i, each in moving if not each.requires_grad]
    if lost:
        yield _silent(custom, f"the gradient by {', '.join(lost)} has no graph at all: it forgets even the seed")
        return
    try:
        connected = _connected(trial, [each for _, each in moving])
    except RuntimeError:  # torch refuses second derivatives of something else
        return
    if not connected and (gap := _moves(subject, trial, seeds)):
        yield _silent(
            custom,
            f"autograd says that the gradient does not depend on {', '.join(names)}, but it changes by {gap:.3g} where"
            f" they change by {_STEP:g}",
        )


def _silent(custom: list[str], seen: str) -> Problem:
    return Problem(
        "double backward silently missing",
        f"{', '.join(custom)}: {seen}; second derivatives through it are wrong, and nothing says so",
        "@once_differentiable above backward, so that torch refuses; or torch operations on ctx.saved_tensors only: no"
        " .data, detach, numpy or tensors that are kept elsewhere",
    )


def _connected(trial: Trial, gradients: list[Tensor]) -> bool:
    """Whether there is any path from the gradients to the inputs."""
    with torch.enable_grad():
        total = [each.abs().sum() if each.is_complex() else each.sum() for each in gradients]
        found = torch.autograd.grad(total, trial.leaves, retain_graph=True, allow_unused=True)
    return any(each is not None for each in found)


def _moves(subject: Subject, trial: Trial, seeds: list[Tensor]) -> float:
    """How far the gradients move with the inputs; 0 if that is rounding."""
    still = [seed.detach() for seed in seeds]
    before = trial.pull(still)
    moved = Trial.of(
        subject, Tensor.clone, [leaf.detach() + _STEP * leaf.detach().abs().mean() for leaf in trial.leaves]
    )
    after = moved.pull(still)
    gap = largest_gap(before, after)
    scale = max(float(each.abs().max()) for each in before if each is not None and each.numel())
    eps = max(torch.finfo(leaf.dtype).eps for leaf in trial.leaves)
    return gap if gap > 100 * eps * scale else 0.0
