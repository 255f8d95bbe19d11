"""The walk from outputs to leaves that turns what torch recorded into plain values; iterative, each node once."""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node as AutogradNode

from pullback.autodiff.deep import free_gently
from pullback.autodiff.reach import edge_of
from pullback.graph import modules
from pullback.graph.modules import Calls
from pullback.graph.names import Names
from pullback.graph.recording.record import Origin, origin_of
from pullback.graph.saved import kept_by, pieces
from pullback.graph.values import Edge, Facts, Kind, Node, Output, Saved, Storage

LEAF = "leaf"
Argument = tuple[AutogradNode | None, int]
_NO_SEQUENCE = 2**64 - 1
_SUFFIX = re.compile(r"Backward(s?)\d*$")


@dataclass
class Walk:
    """What one walk found: the values, and, while someone holds the walk, the torch nodes they stand for."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[Output, ...]
    storages: tuple[Storage, ...]
    index_of: Mapping[AutogradNode, int]
    leaves: Sequence[tuple[int, Tensor]]


def walk(outputs: Sequence[tuple[str, Tensor]], names: Names) -> Walk:
    """Follow what torch recorded from the outputs to its leaves.

    Args:
        outputs: Tensors that require grad, each with its name.
        names: What the user calls the tensors and modules.

    Returns:
        Nodes with producers before users, in the order in which they were made where torch numbers them.
    """
    ends = [edge_of(tensor) for _, tensor in outputs]
    order, sequences = _in_order(node for node, _ in ends)
    index_of = {node: index for index, node in enumerate(order)}
    free_gently(order)
    arguments = [node.next_functions for node in order]
    children = [[index_of[child] for child, _ in given if child is not None] for given in arguments]
    counted = [-1 if number is None else number for number in sequences]
    origins = [
        None if number is None or any(number <= counted[child] for child in given) else origin_of(number)
        for number, given in zip(sequences, children, strict=True)
    ]  # a number not above those of its producers is of another thread's count
    modules.learn(names, origins)
    leaves = [(index, leaf) for index, node in enumerate(order) if (leaf := _leaf(node)) is not None]
    leaf_names = {index: name for index, leaf in leaves if (name := names.leaves.get(id(leaf)))}
    reader = _Reader(names, index_of)
    for index, leaf in leaves:
        reader.own(leaf, leaf_names.get(index, "an unnamed input"))
    of_modules = {
        index: name
        for index, leaf in leaves
        if (name := leaf_names.get(index)) and ("." in name or id(leaf) in names.parameters)
    }
    calls = modules.calls_of(children, [len(given) for given in arguments], origins, of_modules, names)
    nodes = tuple(map(reader.read, order, arguments, sequences, calls, origins))
    edges = tuple(
        Edge(index_of[child], number, index, argument)
        for index, given in enumerate(arguments)
        for argument, (child, number) in enumerate(given)
        if child is not None
    )
    found = tuple(
        Output(name, index_of[node], number, nodes[index_of[node]].produces[number])
        for (name, _), (node, number) in zip(outputs, ends, strict=True)
    )
    return Walk(nodes, edges, found, tuple(reader.storages), index_of, leaves)


@dataclass
class _Reader:
    """Reads nodes one after another; facts that recur are one object, and each storage is counted once."""

    names: Names
    index_of: Mapping[AutogradNode, int]
    nodes: list[Node] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    facts: dict[tuple[object, ...], Facts] = field(default_factory=dict)

    def read(
        self,
        node: AutogradNode,
        arguments: Sequence[Argument],
        sequence: int | None,
        calls: Calls,
        origin: Origin | None,
    ) -> Node:
        kept = kept_by(node)
        index = len(self.nodes)
        leaf = _leaf(node) if sequence is None else None
        produces = tuple(map(self._described, node._input_metadata))
        made = Node(
            index=index,
            operation=LEAF if leaf is not None else operation_name(node.name()),
            kind=self._kind(node, leaf),
            produces=produces,
            receives=tuple(
                None if child is None else self.nodes[self.index_of[child]].produces[number]
                for child, number in arguments
            ),
            name=self._name(node, leaf, len(produces)),
            place=origin.place if origin else None,
            calls=calls,
            saved=tuple(saved for each in kept.tensors for saved in self._saved(*each)) if kept.tensors else (),
            hidden=kept.hidden,
            freed=kept.freed,
            sequence=sequence,
        )
        self.nodes.append(made)
        return made

    def own(self, leaf: Tensor, name: str) -> None:
        """Remember that a storage lives on without the graph."""
        for key, _, _ in pieces(leaf):
            self.names.owners.setdefault(key, name)

    def _kind(self, node: AutogradNode, leaf: Tensor | None) -> Kind:
        if leaf is None:
            return "custom" if hasattr(node, "_forward_cls") else "operation"
        is_parameter = isinstance(leaf, torch.nn.Parameter) or id(leaf) in self.names.parameters
        return "parameter" if is_parameter else "input"

    def _name(self, node: AutogradNode, leaf: Tensor | None, outputs: int) -> str | None:
        if leaf is not None:
            return self.names.leaves.get(id(leaf))
        for number in range(outputs):
            if (node, number) in self.names.results:
                return self.names.results[node, number]
        return None

    def _saved(self, name: str, tensor: Tensor) -> Iterator[Saved]:
        producer = self.index_of.get(tensor.grad_fn) if tensor.grad_fn is not None else None
        for key, size, device in pieces(tensor):
            if key not in self.numbers:
                self.numbers[key] = len(self.storages)
                self.storages.append(Storage(size, device, self.names.owners.get(key)))
            yield Saved(name, self._described(tensor), self.numbers[key], producer)

    def _described(self, thing: Any) -> Facts:
        nested = getattr(thing, "is_nested_tensor", False) or getattr(thing, "is_nested", False)
        shape = () if nested else tuple(thing.shape)
        key = (shape, thing.dtype, thing.device)
        if key not in self.facts:
            self.facts[key] = Facts(*key)
        return self.facts[key]


@functools.cache
def operation_name(name: str) -> str:
    """``Addmm`` for ``AddmmBackward0``: what was computed, from what torch calls its backward."""
    return _SUFFIX.sub("", name.rpartition("::")[2]) or name


def _leaf(node: AutogradNode) -> Tensor | None:
    """The tensor in which a backward pass ends here."""
    return node.variable if node.name() == "torch::autograd::AccumulateGrad" else None  # type: ignore[attr-defined]


def _sequence(node: AutogradNode) -> int | None:
    """The number that torch counted up when it made the node; leaves have none."""
    number = node._sequence_nr()
    return number if number < _NO_SEQUENCE else None


def _in_order(ends: Iterable[AutogradNode]) -> tuple[list[AutogradNode], list[int | None]]:
    """All nodes with their numbers, producers before users; among those that are ready, the one that was made first."""
    users: dict[AutogradNode, list[AutogradNode]] = {}
    waits: dict[AutogradNode, int] = {}
    stack = list(dict.fromkeys(ends))
    seen = set(stack)
    while stack:
        node = stack.pop()
        children = {child for child, _ in node.next_functions if child is not None}
        waits[node] = len(children)
        for child in children:
            users.setdefault(child, []).append(node)
            if child not in seen:
                seen.add(child)
                stack.append(child)
    numbers = {node: _sequence(node) for node in waits}
    when = {
        # a leaf stands just before its first use
        node: min((numbers[user] or 0 for user in users.get(node, ())), default=0) if number is None else number
        for node, number in numbers.items()
    }
    ready = [(when[node], serial, node) for serial, (node, count) in enumerate(waits.items()) if not count]
    heapq.heapify(ready)
    order = []
    serial = len(waits)
    while ready:
        _, _, node = heapq.heappop(ready)
        order.append(node)
        for user in users.get(node, ()):
            waits[user] -= 1
            if not waits[user]:
                serial += 1
                heapq.heappush(ready, (when[user], serial, user))
    return order, [numbers[node] for node in order]
