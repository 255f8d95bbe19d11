"""Which leaves a backward pass reaches only through operations whose derivative is zero."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Backward

Edge = tuple[Node, int]
ACCUMULATE = "torch::autograd::AccumulateGrad"


def cut_leaves(backward: Backward, cuts: Callable[[Node, int], bool]) -> list[tuple[Tensor, Node]]:
    """The leaves whose every path goes through a cut edge, each with the node of the first cut towards it.

    Args:
        backward: The pass.
        cuts: Whether the edge from a node to its n-th input has derivative zero.
    """
    nodes = backward.nodes
    roots = [root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None) for root in backward.roots]
    cut: dict[Node, Node] = {}
    for node in nodes:
        for index, (child, _) in enumerate(node.next_functions):
            if child is not None and cuts(node, index):
                cut[node] = node
    if not cut:
        return []
    reached = _reached([root for root in roots if root is not None], cuts)
    found: dict[Node, Node] = {}
    for node in cut:
        for index, (child, _) in enumerate(node.next_functions):
            if child is None or not cuts(node, index):
                continue
            for behind in _reached([child], lambda *_: False):
                if behind.name() == ACCUMULATE and behind not in reached:
                    found.setdefault(behind, node)
    wanted = {id(each) for each in backward.inputs if isinstance(each, Tensor)}
    leaves = [(node.variable, first) for node, first in found.items()]  # type: ignore[attr-defined]
    return [(leaf, first) for leaf, first in leaves if not wanted or id(leaf) in wanted]


def parents_of(backward: Backward) -> dict[Node, list[Node]]:
    """The nodes that use each node, towards the root."""
    parents: dict[Node, list[Node]] = {}
    for node in backward.nodes:
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, []).append(node)
    return parents


def _reached(starts: list[Node], cuts: Callable[[Node, int], bool]) -> set[Node]:
    stack = list(starts)
    seen = set(stack)
    while stack:
        node = stack.pop()
        for index, (child, _) in enumerate(node.next_functions):
            if child is not None and child not in seen and not cuts(node, index):
                seen.add(child)
                stack.append(child)
    return seen


def is_builtin(node: Node, names: tuple[str, ...]) -> bool:
    """Whether a node is of an operation of torch's with such a name, and not of a custom Function that is called so."""
    return node.name().startswith(names) and not hasattr(node, "_forward_cls")
