"""The same numbers each time: two evaluations, two backward passes over one graph, and one over a new graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, draws, kept, largest_gap, said, same

_CHANGED = "modified by an inplace operation"


@behaviour("repeatable evaluation")
def evaluation(subject: Subject) -> Iterator[Problem]:
    """Two evaluations at the same point, with the same random numbers, then with others."""
    points = tuple(subject.wrt.values())
    with torch.no_grad():
        first, second = subject.forward(*points), subject.forward(*points)
    if not same(first, second):
        yield Problem(
            "random function",
            f"two calls with the same inputs differ by {largest_gap(first, second):.3g}, though torch's generators,"
            " buffers and attributes were the same: numbers come from another generator or from what the last call"
            " left behind",
            "draw them outside and hand them in, or use torch's generators",
        )
    elif draws(subject):
        yield Problem(
            "random numbers",
            "the function draws random numbers; it was checked for one draw, the same at each evaluation",
            "nothing",
            harmless=True,
        )


@behaviour("repeatable backward")
def backward(subject: Subject) -> Iterator[Problem]:
    """The same seed gives the same gradient, over the same graph and over a new one."""
    trial = Trial.of(subject)
    seeds = trial.seeds(subject)
    with kept(trial.leaves):
        try:
            first, second, third = (_copied(trial.pull_on(_fresh(seeds))) for _ in range(3))
        except RuntimeError as error:
            if _CHANGED in str(error):
                yield _changes(f"a second backward pass over the same graph is refused: {said(error)}")
            return
        if same(first, second) and same(first, third):
            return
        renewed = [_copied(Trial.of(subject).pull_on(_fresh(seeds))) for _ in range(2)]
    gap = f"a second backward pass over the same graph differs by {largest_gap(first, second):.3g}"
    if same(first, renewed[0]) and same(first, renewed[1]):
        settled = "; a third equals the second" if same(second, third) else ""
        yield _changes(f"{gap}{settled}, but one over a new graph does not: the first pass changed what was saved")
    else:
        yield Problem(
            "nondeterministic backward",
            f"{gap}, and so do passes over new graphs",
            "save random numbers (a dropout mask) in forward and use the same in backward; see"
            " torch.use_deterministic_algorithms",
        )


def _changes(text: str) -> Problem:
    fix = "no in-place operation on saved tensors or on attributes of ctx in backward: clone first"
    return Problem("backward changes what it keeps", text, fix)


def _fresh(seeds: tuple[Tensor, ...]) -> list[Tensor]:
    return [seed.clone() for seed in seeds]


def _copied(gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Apart from what the function keeps, which may change."""
    return [None if each is None else each.detach().clone() for each in gradients]
