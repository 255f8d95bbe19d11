"""Which tensors a recorded graph leads to: a walk from the outputs, iterative, each edge once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from pullback.autodiff.deep import free_gently

Edge = tuple[Node, int]


@torch.inference_mode(False)
@torch.enable_grad()
def reached(outputs: Iterable[Tensor], wanted: Sequence[Tensor]) -> list[bool]:
    """For each wanted tensor, whether a backward pass from the outputs would arrive at it."""
    targets = {index: edge_of(tensor) for index, tensor in enumerate(wanted) if tensor.requires_grad}
    missing = set(targets.values())
    found: set[Edge] = set()
    visited: set[Node] = set()
    stack = [edge_of(output) for output in outputs if output.requires_grad]
    while stack and missing:
        node, number = stack.pop()
        if (node, number) in missing:
            missing.discard((node, number))
            found.add((node, number))
        if node in visited:
            continue
        visited.add(node)
        stack.extend((child, index) for child, index in node.next_functions if child is not None)
    free_gently(visited)
    return [targets.get(index) in found for index in range(len(wanted))]


def nodes(outputs: Iterable[Tensor]) -> Iterator[Node]:
    """Every node that a backward pass from the outputs could visit."""
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    visited = set(stack)
    try:
        while stack:
            node = stack.pop()
            yield node
            for child, _ in node.next_functions:
                if child is not None and child not in visited:
                    visited.add(child)
                    stack.append(child)
    finally:  # also where who asks stops early
        free_gently(visited)


def edge_of(tensor: Tensor) -> Edge:
    """The place in the graph where a gradient for this tensor is delivered."""
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr
