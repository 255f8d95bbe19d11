"""No side effects on tensors of the caller: on inputs by forward or by backward, on the incoming gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, name_of


@behaviour("inputs are left alone")
def inputs(subject: Subject) -> Iterator[Problem]:
    """Neither forward nor backward changes an input."""
    trial = Trial.of(subject)
    changed = set()
    for name, leaf, given in zip(subject.wrt, trial.leaves, trial.given, strict=True):
        if given._version and (given.is_leaf or not _dirty(trial, given)) and given.shape == leaf.shape:
            changed.add(name)
            yield _modified(name, leaf, given, trial)
    before = [given.detach().clone() for given in trial.given]
    with contextlib.suppress(RuntimeError):  # torch's own word on a saved tensor that is changed
        trial.pull([seed.clone() for seed in trial.seeds(subject)])
    for name, value, given in zip(subject.wrt, before, trial.given, strict=True):
        if name not in changed and not _equal(value, given.detach()):
            yield Problem(
                "backward modifies its input",
                f"the values of {name} are not the same after a backward pass: they differ by "
                f"{float((value - given.detach()).abs().max()):.3g}",
                "clone the saved tensor before an in-place operation in backward",
            )


@behaviour("incoming gradient is left alone")
def gradient(subject: Subject) -> Iterator[Problem]:
    """The backward of a custom Function does not change the gradient that it is given, which others may read too."""
    trial = Trial.of(subject)
    seen: dict[str, tuple[int, float]] = {}
    arrived: dict[Any, list[tuple[Tensor, int, Tensor]]] = {}
    handles = []
    for node in trial.custom():

        def before(grads: tuple[Tensor | None, ...], node: Any = node) -> None:
            arrived[node] = [(each, each._version, each.clone()) for each in grads if each is not None]

        def after(_: Any, __: Any, node: Any = node) -> None:
            for position, (each, version, value) in enumerate(arrived.pop(node, [])):
                if each._version != version and not _equal(each, value):
                    gap = float((each - value).abs().nan_to_num(0, 0).max())
                    seen.setdefault(name_of(node), (position, gap))

        handles += [node.register_prehook(before), node.register_hook(after)]
    try:
        trial.pull([seed.clone() for seed in trial.seeds(subject)])
    finally:
        for handle in handles:
            handle.remove()
    for name, (position, gap) in seen.items():
        yield Problem(
            "backward modifies the incoming gradient",
            f"the backward of {name} changes gradient {position} in place, by up to {gap:.3g}; the same tensor may be"
            " the gradient of another input, or belong to the caller",
            "grad = grad.clone() first, or the operation without its underscore",
        )


def _modified(name: str, leaf: Tensor, given: Tensor, trial: Trial) -> Problem:
    gap = float((leaf.detach() - given.detach()).abs().nan_to_num(0, 0).max()) if leaf.numel() else 0.0
    classes = ", ".join(sorted({name_of(node) for node in trial.custom()}))
    if classes and given.grad_fn is not None and not given.grad_fn.name().startswith(tuple(_INPLACE)):
        return Problem(
            "modifies an input without mark_dirty",
            f"{classes} changes {name} in place, by up to {gap:.3g}, and autograd does not know: earlier operations"
            f" and later uses of {name} get wrong gradients without an error",
            "ctx.mark_dirty(x) and return x itself, or work on x.clone()",
        )
    return Problem(
        "modifies its input",
        f"{name} is changed in place, by up to {gap:.3g}",
        f"work on a copy, {name}.clone(), or say so in the name, with an underscore at its end",
    )


# What made the tensor that was handed over; any other node is an in-place operation that autograd knows.
_INPLACE = ("CopySlices",)


def _dirty(trial: Trial, given: Tensor) -> bool:
    """Whether a custom Function marked it dirty."""
    return given.grad_fn is not None and given.grad_fn in set(trial.custom())


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.isclose(first, second, rtol=0, atol=0, equal_nan=True).all())
