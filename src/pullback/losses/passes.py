"""The reverse passes that find the rows: one for each loss, by all parameters or by some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from pullback.autodiff.backward import accumulate, gradients
from pullback.executors.memory import default_limit
from pullback.losses.rows import Row
from pullback.losses.tasks import Tasks

# Fewer bytes of rows are kept without a look at what is free.
ALWAYS_KEPT = 2**27


def row_passes(tasks: Tasks, leaves: Sequence[Tensor], retain_last: Callable[[list[Row]], bool]) -> list[Row]:
    """For each loss its gradient by every leaf, None where it does not reach.

    Args:
        tasks: The losses.
        leaves: The leaves.
        retain_last: Whether the graph is kept after the last pass, told the rows of the others.
    """
    rows: list[Row] = []
    for place, (loss, one) in enumerate(zip(tasks.losses, tasks.ones, strict=True)):
        keep = place < len(tasks.losses) - 1 or retain_last(rows)
        rows.append(list(gradients([loss], [one], leaves, retain_graph=keep, create_graph=False)))
    return rows


def groups_within_memory(leaves: Sequence[Tensor], losses: int) -> list[list[int]]:
    """The leaves in groups whose rows fit into memory together: one group, if it can be."""
    sizes = [losses * leaf.numel() * leaf.itemsize for leaf in leaves]
    if sum(sizes) <= ALWAYS_KEPT:
        return [[*range(len(leaves))]]
    limits = {device: default_limit(device) for device in {leaf.device for leaf in leaves}}
    groups: list[list[int]] = [[]]
    taken = dict.fromkeys(limits, 0)
    for index, (leaf, size) in enumerate(zip(leaves, sizes, strict=True)):
        if groups[-1] and taken[leaf.device] + size > limits[leaf.device]:
            groups.append([])
            taken = dict.fromkeys(limits, 0)
        groups[-1].append(index)
        taken[leaf.device] += size
    return groups


@torch.no_grad()
def add_to_grad(found: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Add gradients that nobody else holds to the ``.grad`` of leaves."""
    through: list[tuple[Tensor, Tensor]] = []
    listened = torch.distributed.is_available() and torch.distributed.is_initialized()
    for leaf, gradient in found:
        # Hooks that run after accumulation, DistributedDataParallel's among them, are run by torch's engine only.
        plain = leaf.is_contiguous() and gradient.layout is torch.strided
        if listened or leaf._post_accumulate_grad_hooks or not plain:
            through.append((leaf, gradient))
        elif leaf.grad is None:
            leaf.grad = gradient
        else:
            leaf.grad += gradient
    if through:
        leaves, given = zip(*through, strict=True)
        accumulate(leaves, given, None, retain_graph=False, create_graph=False)


def is_hooked(leaf: Tensor) -> bool:
    """Whether a hook of the user's changes or watches the gradient of a leaf."""
    return bool(leaf._backward_hooks)
