"""One look at a backward pass: hooks on the nodes count exponents while torch's engine runs, and change nothing."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from pullback.graph.leaks.holders import user_frames
from pullback.graph.names import Names
from pullback.graph.replaying.local import conform, forms_of
from pullback.graph.values import Edge, Node
from pullback.graph.walk import walk
from pullback.precision.exponents import LOW, Exponents, Waiting, look, settle

Seen = Exponents | Waiting | None


@dataclass(frozen=True)
class Seeing:
    """What was seen of a pass.

    Attributes:
        nodes: The graph, producers before users.
        makers: For each node, the users of its results: their backward made what came to it.
        arrived: The exponents of the cotangents that came to each node.
        parts: The exponents of those of which a cotangent is the sum, where there are several, by node and output.
        kept: The exponents of what ``.grad`` of the leaves held before.
    """

    nodes: tuple[Node, ...]
    makers: Mapping[int, Sequence[int]]
    arrived: Mapping[int, Sequence[Exponents | None]]
    parts: Mapping[tuple[int, int], Sequence[Exponents]]
    kept: Mapping[int, Exponents]


@dataclass
class Looking:
    """A look that is being taken: from before the engine runs until it has ended.

    Attributes:
        nodes: The graph.
        edges: Its edges.
        arrived: What came to each node so far.
        parts: What was passed on to where several cotangents are summed.
        kept: What the leaves had.
        handles: The hooks, to be removed.
    """

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    arrived: dict[int, list[Seen]] = field(default_factory=dict)
    parts: dict[tuple[int, int], list[Seen]] = field(default_factory=dict)
    kept: dict[int, Seen] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    trouble: list[Exception] = field(default_factory=list)

    def begin(self, roots: Sequence[Any], frame: FrameType) -> None:
        """Put hooks on the nodes behind the roots."""
        names = Names()
        for user in user_frames(frame):
            names.add_frame(user)
        tensors = [("output", _tensor(root)) for root in roots]
        found = walk([pair for pair in tensors if pair[1].requires_grad], names)
        self.nodes, self.edges = found.nodes, found.edges
        summed = self._summed()
        for node, index in found.index_of.items():
            self.handles.append(node.register_prehook(functools.partial(self._enter, index)))
            targets = [
                (number, (found.index_of[child], output), forms_of(child)[output])
                for number, (child, output) in enumerate(node.next_functions)
                if child is not None and (found.index_of[child], output) in summed
            ]
            if targets:
                self.handles.append(node.register_hook(functools.partial(self._leave, targets)))
        for index, leaf in found.leaves:
            if leaf.grad is not None and leaf.grad.dtype in LOW:
                self.kept[index] = look(leaf.grad)

    def end(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def seen(self) -> Seeing:
        """What was seen, fetched from the devices."""
        every = [one for group in (*self.arrived.values(), *self.parts.values(), self.kept.values()) for one in group]
        waiting = {id(one): one for one in every if isinstance(one, Waiting)}
        settled = dict(zip(waiting, settle(list(waiting.values())), strict=True))

        def fetched(one: Seen) -> Exponents | None:
            return settled[id(one)] if isinstance(one, Waiting) else one

        makers: dict[int, list[int]] = {}
        for edge in self.edges:
            makers.setdefault(edge.producer, []).append(edge.consumer)
        return Seeing(
            self.nodes,
            makers,
            {index: [fetched(one) for one in group] for index, group in self.arrived.items()},
            {key: [each for one in group if (each := fetched(one))] for key, group in self.parts.items()},
            {index: each for index, one in self.kept.items() if (each := fetched(one))},
        )

    def _summed(self) -> set[tuple[int, int]]:
        """Where several cotangents meet in low precision."""
        counts: dict[tuple[int, int], int] = {}
        for edge in self.edges:
            key = (edge.producer, edge.output)
            counts[key] = counts.get(key, 0) + 1
        return {
            (node, output)
            for (node, output), count in counts.items()
            if count > 1 and self.nodes[node].produces[output].dtype in LOW
        }

    def _enter(self, index: int, cotangents: Sequence[Tensor | None]) -> None:
        try:
            self.arrived[index] = [None if each is None else look(each) for each in cotangents]
        except Exception as problem:  # the user's pass must go on
            self.trouble.append(problem)

    def _leave(self, targets: Sequence[Any], passed: Sequence[Tensor | None], _: Sequence[Tensor | None]) -> None:
        try:
            for number, key, form in targets:
                value = passed[number]
                if value is not None:
                    self.parts.setdefault(key, []).append(look(conform(value.detach(), form)))
        except Exception as problem:
            self.trouble.append(problem)


def multiplier(root: Any, seed: Any) -> float | None:
    """The number that a loss was multiplied by just before its backward pass, with its seed; None if it was not."""
    tensor = _tensor(root)
    factor = 1.0
    if isinstance(seed, Tensor) and seed.numel() == 1:
        factor = float(seed.detach())
    node: Any = tensor.grad_fn
    if node is not None and node.name() == "MulBackward0" and tensor.numel() == 1:
        given: list[Tensor | None] = [node._saved_other, node._saved_self]
        numbers = [each for each in given if each is not None]
        if len(numbers) == 1 and numbers[0].numel() == 1:
            factor *= float(numbers[0].detach())
    return factor if math.isfinite(factor) and factor not in {0.0, 1.0} else None


def _tensor(root: Any) -> Tensor:
    """A root as a tensor: an edge of the graph is asked for one that it stands for."""
    if isinstance(root, GradientEdge):
        raise NotImplementedError("a backward pass from an edge of the graph is not looked at")
    tensor: Tensor = root
    return tensor
