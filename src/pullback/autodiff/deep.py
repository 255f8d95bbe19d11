"""Freeing a deep graph without overflowing the stack.

Torch frees a chain of nodes in a loop, except (since 2.13) for nodes that Python has seen: each of those frees the next
one from inside its own end. Looking at a chain of 40,000 nodes is then enough for the program to crash when it lets the
chain go, long after the look. So whoever walks a graph leaves it able to go gently.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.autograd.graph import Node

SAFE = 10_000  # nodes in a chain that any stack has room for
_STRIDE = 1_000
_KEY = "pullback: freed in a loop"


def free_gently(nodes: Collection[Node]) -> None:
    """Let each thousandth node of a chain hold the thousand before it, which it keeps alive anyway.

    A list lets go of its last element first, so that those a node holds are freed one after another, users before
    producers. Nothing lives longer for it, and no cycle arises: a node holds its own ancestors only. Those that were
    seen are enough: torch frees the others in its loop.
    """
    if len(nodes) <= SAFE:
        return
    depth: dict[Node, int] = {}
    deepest: dict[Node, Node | None] = {}
    for node in _producers_first(nodes):
        children = [child for child, _ in node.next_functions if child in depth]
        deepest[node] = max(children, key=depth.__getitem__, default=None)
        depth[node] = 1 + max((depth[child] for child in children), default=-1)
    for node, length in depth.items():
        metadata: dict[Any, Any] = node.metadata  # type: ignore[assignment] # torch's stub calls the property a method
        if length and length % _STRIDE == 0 and _KEY not in metadata:
            path: list[Node] = []
            at = deepest[node]
            while at is not None and len(path) < _STRIDE:
                path.append(at)
                at = deepest[at]
            metadata[_KEY] = path[::-1]


def _producers_first(nodes: Collection[Node]) -> list[Node]:
    """The nodes, those that made something before those that used it; iterative."""
    waits: dict[Node, int] = {}
    users: dict[Node, list[Node]] = {}
    seen = set(nodes)
    for node in nodes:
        children = seen.intersection(child for child, _ in node.next_functions)
        waits[node] = len(children)
        for child in children:
            users.setdefault(child, []).append(node)
    order = [node for node, count in waits.items() if not count]
    for node in order:
        for user in users.get(node, ()):
            waits[user] -= 1
            if not waits[user]:
                order.append(user)  # a queue, read while it grows
    return order
