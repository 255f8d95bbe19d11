"""``pb.conflicts``: where the gradients of several losses pull against each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.errors import ArgumentError
from pullback.graph.names import Names, bare
from pullback.losses.conflict import Conflicts, find_conflicts
from pullback.losses.tasks import check_leaves, tasks_of


def conflicts(losses: Any, params: Any = None, *, names: Any = None) -> Conflicts:
    """Cosines and norms of the gradients of several losses by what they share, overall and layer by layer.

    ``cos_ij = ∇ℓ_i · ∇ℓ_j / (|∇ℓ_i| |∇ℓ_j|)``: negative where a step down one loss climbs the other. One reverse pass
    for each loss; the graph is kept, and no ``.grad`` is touched.

    Args:
        losses: Scalars in a dict or sequence, or a vector: one loss for each element.
        params: The parameters to look at: a module, a dict of tensors by name, a structure of tensors, or an iterator
            such as ``model.parameters()``; None: all leaves that the losses reach. Those that fewer than two losses
            reach are left out.
        names: What to call parameters, as for :func:`pullback.graph`. By default the variables of the caller. A name
            ``trunk.0.weight`` belongs to the layer ``trunk.0``.

    Returns:
        The report; its matrices are tensors, and it prints as a table, the largest conflict first.

    Raises:
        ArgumentError: A loss or parameter is of the wrong kind.
        GraphError: A loss carries no graph, or its graph was freed; or no parameter is reached by two losses.
        ValueMismatch: There are fewer than two losses, or one is no finite real number.

    Source: Yu, Kumar, Gupta, Levine, Hausman, Finn, "Gradient Surgery for Multi-Task Learning", NeurIPS 2020,
    definition 1 (conflicting gradients).

    >>> import torch
    >>> from pullback.api.conflicts import conflicts
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> print(conflicts({"fit": (w ** 2).sum(), "size": -w.sum()}))
    2 losses over 1 shared parameter in 1 layer; 1 of 1 pairs conflict
    <BLANKLINE>
    loss  value  norm of gradient
    fit   5      4.472
    size  -3     1.414
    <BLANKLINE>
    cosine  losses     layer  norms
    -0.949  fit, size  all    4.472, 1.414
    -0.949  fit, size  w      4.472, 1.414
    """
    tasks = tasks_of(losses, "pb.conflicts")
    known = Names()
    for given in (names, params if isinstance(params, nn.Module) else None):
        if given is not None:
            known.add("", given)
    known.add_frame(sys._getframe(1))

    def called(place: int, leaf: Tensor) -> str:
        return known.name_of(leaf) or f"parameter {place} {tuple(leaf.shape)}"

    return find_conflicts(tasks, None if params is None else _named(params, called), called)


def _named(params: Any, called: Any) -> dict[str, Tensor]:
    """The parameters by name."""
    if isinstance(params, nn.Module):
        found: dict[str, Tensor] = {name: each for name, each in params.named_parameters() if each.requires_grad}
    else:
        tree = tuple(params) if isinstance(params, Iterator) else params
        paths, _ = pytree.tree_flatten_with_path(tree)
        for path, leaf in paths:
            if not isinstance(leaf, Tensor):
                raise ArgumentError(
                    f"params{pytree.keystr(path)} is not a tensor",
                    got=type(leaf).__name__,
                    fix="a module, or tensors: model.parameters(), dict(model.named_parameters())",
                )
        by_key = isinstance(params, Mapping)
        found = {
            bare(pytree.keystr(path)) if by_key else called(place, leaf): leaf
            for place, (path, leaf) in enumerate(paths)
        }
    if not found:
        raise ArgumentError("there is no parameter to look at", got=type(params).__name__, fix="leave params out")
    check_leaves(found.items())
    return found
