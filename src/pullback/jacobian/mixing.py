"""Mixing: whether an output of one example of a batch depends on the input of another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import random_vector
from pullback.strategies.blocks import common_lead


def mixing(passes: Passes, lead: int) -> str:
    """Whether examples mix: why it cannot be excluded, or ``""``.

    A reverse pass seeded on some examples must leave the gradient of all others exactly zero. One pass, seeded on a
    random half, finds nearly every mixing at once. What remains is a pair: for every two examples there is a binary
    digit in which their numbers differ, so passes seeded on "digit d is set" and "is not set" leave no pair out.
    They run once for a function and its shapes, and every time where nothing is verified afterwards.
    """
    lin = passes.linearization
    shared = common_lead(lin.rows, lin.columns)[:lead]
    if lin.transformed:
        return "inside a torch.func transform it cannot be proved that examples do not mix"
    examples = math.prod(shared)
    half = torch.rand(examples, generator=torch.Generator().manual_seed(11)) < 0.5
    reason = _leak(passes, half[None], shared)
    proved = f"examples do not mix along {lead}"
    if reason or (passes.verifier.active and passes.verifier.recall(proved)):
        return reason
    digits = torch.arange(max(examples - 1, 0).bit_length())
    is_set = (torch.arange(examples)[None] >> digits[:, None]) % 2 == 1
    reason = _leak(passes, torch.cat([is_set, ~is_set]), shared)
    if not reason:
        passes.verifier.learn(proved)
    return reason


def _leak(passes: Passes, masks: Tensor, shared: tuple[int, ...]) -> str:
    """Where a gradient leaves the examples that a mask selects; one reverse pass for each mask."""
    if not masks.numel():
        return ""
    lin, lead = passes.linearization, len(shared)
    masks = masks.reshape(-1, *shared)
    seeds = tuple(_over(masks, part.ndim - lead, part.device) * part for part in random_vector(lin.rows, seed=13))
    if len(masks) == 1:
        gradients = tuple(part[None] for part in passes.verifier.plain(tuple(seed[0] for seed in seeds)))
    else:
        gradients, _ = passes.execute(
            "reverse", passes.routes("reverse"), lambda a, b: tuple(seed[a:b] for seed in seeds), len(masks)
        )
    for gradient, leaf in zip(gradients, lin.columns.leaves, strict=True):
        leaked = (gradient.detach() != 0) & ~_over(masks, gradient.ndim - 1 - lead, gradient.device)
        if bool(leaked.any()) and len(masks) > 1:  # a wrong batching rule is no mixing
            return next(filter(None, (_leak(passes, mask[None], shared) for mask in masks)), "")
        if bool(leaked.any()):
            example = leaked.nonzero()[0, 1 : lead + 1].tolist()
            return f"examples mix: outputs of other examples depend on {leaf.name}{example}"
    return ""


def _over(masks: Tensor, dimensions: int, device: torch.device) -> Tensor:
    """Masks with so many dimensions of size one behind them."""
    return masks.reshape(masks.shape + (1,) * dimensions).to(device)
