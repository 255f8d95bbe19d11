"""The losses of several tasks as named scalars, and the parameters that they reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.autodiff.backward import check_graph
from pullback.autodiff.deep import free_gently
from pullback.autodiff.seeds import assign
from pullback.errors import ArgumentError, GraphError, ValueMismatch
from pullback.graph.names import bare

# An error lists no more parameters than this.
MOST_NAMED = 4


@dataclass(frozen=True, eq=False)
class Tasks:
    """Several scalar losses.

    Attributes:
        names: What the user calls each.
        losses: Each, with its graph.
        values: Their values, ``(m,)``, in at least single precision, on the device of the first.
    """

    names: tuple[str, ...]
    losses: tuple[Tensor, ...]
    values: Tensor

    @property
    def ones(self) -> list[Tensor]:
        """The seed of each loss for its own gradient."""
        return [torch.ones_like(loss, requires_grad=False) for loss in self.losses]

    def seeds(self, weights: Sequence[float]) -> list[Tensor]:
        """The seed of each loss for the gradient of the weighted sum."""
        return [torch.full_like(each, weight, requires_grad=False)
                for each, weight in zip(self.losses, weights, strict=True)]  # fmt: skip


def tasks_of(losses: Any, what: str) -> Tasks:
    """The losses in a dict or sequence of scalars, or in a vector, as named scalars.

    Args:
        losses: What the user gave.
        what: The call, for messages: ``pb.conflicts(losses)``.

    Raises:
        ArgumentError: There is no loss, or one is not a tensor.
        GraphError: A loss carries no graph.
        ValueMismatch: There is only one loss, or one is no real number, or not finite.
    """
    if isinstance(losses, Tensor) and losses.ndim == 1 and losses.requires_grad:
        found = [(f"losses[{index}]", loss) for index, loss in enumerate(losses.unbind())]
    else:
        found = [(_called(name), loss) for loss, _, name in assign(losses, None)]
    if len(found) < 2:
        raise ValueMismatch(
            f"{what} takes at least two losses", got=f"{len(found)} loss", fix="pb.backward(loss) for a single one"
        )
    for name, loss in found:
        _check_scalar(name, loss)
    first = found[0][1].device
    values = torch.stack([_precise(loss.detach().reshape(())).to(first) for _, loss in found])
    numbers = values.tolist()
    if not all(map(math.isfinite, numbers)):
        bad = [f"{name} = {value}" for (name, _), value in zip(found, numbers, strict=True)]
        raise ValueMismatch(
            "a loss is not finite, so its gradient has no meaning beside the others'",
            got=", ".join(bad),
            fix="leave this step out; or look where it arises: print(pb.graph(losses))",
        )
    return Tasks(tuple(name for name, _ in found), tuple(loss for _, loss in found), values)


def reached_leaves(tasks: Tasks) -> tuple[list[Tensor], set[int]]:
    """The leaves that at least one loss reaches, and the ids of those that the last one reaches.

    One walk over the graph, from the last loss first.
    """
    visited: set[Node] = set()
    *others, last = tasks.losses
    leaves = {id(leaf): leaf for leaf in _leaves_from(last, visited)}
    by_last = set(leaves)
    for loss in others:
        leaves |= {id(leaf): leaf for leaf in _leaves_from(loss, visited)}
    free_gently(visited)
    return list(leaves.values()), by_last


def check_leaves(named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters whose gradients cannot be compared by real inner products, or are no leaves.

    Raises:
        ArgumentError: A parameter is complex.
        GraphError: A parameter does not require grad, or is a result.
    """
    for name, leaf in named:
        if leaf.is_complex():
            raise ArgumentError(
                f"{name} is complex, and gradients of losses are compared as real vectors",
                got=f"shape {tuple(leaf.shape)}, {leaf.dtype}",
                fix="make the parameter torch.view_as_real(w), and compute with torch.view_as_complex of it",
            )
        if not leaf.requires_grad or not leaf.is_leaf:
            state = "requires_grad=False" if not leaf.requires_grad else f"a result ({type(leaf.grad_fn).__name__})"
            raise GraphError(
                f"{name} is no parameter: not a leaf that requires grad",
                got=f"shape {tuple(leaf.shape)}, {state}",
                fix="give leaves, such as model.parameters(); leave frozen ones out",
            )


def no_shared(tasks: Tasks, leaves: Sequence[Tensor]) -> GraphError:
    """The error of losses that have nothing to compete for."""
    shown = ", ".join(str(tuple(leaf.shape)) for leaf in leaves[:MOST_NAMED])
    more = f" and {len(leaves) - MOST_NAMED} more" if len(leaves) > MOST_NAMED else ""
    return GraphError(
        "no parameter is reached by two losses, so there is nothing to combine",
        got=f"losses {', '.join(tasks.names)}; parameters {shown or 'none'}{more}",
        fix="look for .detach(), .data, torch.no_grad() or a frozen layer between the losses and what they share; "
        "independent losses need no combine=: pb.backward(losses)",
    )


def _leaves_from(loss: Tensor, visited: set[Node]) -> Iterable[Tensor]:
    if loss.grad_fn is None:
        yield loss
        return
    stack = [] if loss.grad_fn in visited else [loss.grad_fn]
    visited.update(stack)
    while stack:
        node = stack.pop()
        following = node.next_functions
        if not following and isinstance(leaf := getattr(node, "variable", None), Tensor) and leaf.requires_grad:
            yield leaf
        for child, _ in following:
            if child is not None and child not in visited:
                visited.add(child)
                stack.append(child)


def _called(name: str) -> str:
    place = name.removeprefix("output")
    return "losses" + place if place.startswith("[") and bare(place) == place else bare(place) or name


def _check_scalar(name: str, loss: Tensor) -> None:
    check_graph(loss, name, None)
    if loss.numel() != 1:
        raise ValueMismatch(
            f"{name} is not a single number",
            got=f"shape {tuple(loss.shape)}",
            fix="its .mean() or .sum(); a vector alone, pb.backward(vector, combine=...), is one loss for each element",
        )
    if loss.is_complex():
        raise ValueMismatch(f"{name} is complex", got=str(loss.dtype), fix="a real loss, such as loss.abs() or .real")


def _precise(value: Tensor) -> Tensor:
    return value.float() if value.dtype in {torch.float16, torch.bfloat16} else value
