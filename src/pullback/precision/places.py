"""Where in a backward pass the numbers are lost: each node's cotangent beside that of the same node in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pullback.graph.graph import Graph
from pullback.graph.text import short
from pullback.graph.values import Node, Place
from pullback.precision.lost import Lost, figures, is_nothing, read
from pullback.precision.passes import Evaluated
from pullback.words import dtype_name

Kind = Literal["overflow", "underflow", "subnormal", "rounding"]

SHARE = 0.01  # Of a cotangent's entries that become zero or subnormal at a node before it is told.
ROUGH = 0.01  # An error of a cotangent before it is told that it was rounded away,
ROUNDINGS = 16  # which is more than so many roundings in its dtype,
JUMP = 10.0  # and so many times that of what the node received.
MOST = 8  # Places told of each kind.

# Casts stand in the graph of one run and not of the other.
_CASTS = frozenset({"ToCopy"})
Shape = tuple[str, tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]
Exact = Mapping[int, Sequence[Tensor | None]]


@dataclass(frozen=True, slots=True)
class Where:
    """A place at which a backward pass loses something that had come in well.

    Attributes:
        kind: What happens there.
        operation: The operation whose backward does it.
        module: The innermost module around it, by its path; empty outside modules.
        place: The line that made it, if known.
        dtype: The dtype of what it passed on.
        lost: What that lost.
    """

    kind: Kind
    operation: str
    module: str
    place: Place | None
    dtype: torch.dtype
    lost: Lost

    def __str__(self) -> str:
        return f"{self.located}: {self.text}"

    @property
    def located(self) -> str:
        """The operation, its module and its line."""
        inside = f" in {self.module}" if self.module else ""
        return f"{self.operation}{inside}" + (f"  {short(self.place)}" if self.place else "")

    @property
    def text(self) -> str:
        """What happens, in a sentence."""
        held, lost = torch.finfo(self.dtype), self.lost
        dtype = dtype_name(self.dtype)
        if self.kind == "overflow":
            return f"its cotangent overflows in {dtype}, which ends at {held.max:.4g} ({lost.overflowed:.1%} of it)"
        if self.kind == "underflow":
            return f"its cotangent underflows to zero in {dtype} ({lost.zeroed:.1%} of it)"
        if self.kind == "subnormal":
            begin = f"normal numbers begin at {held.smallest_normal:.4g}"
            return f"its cotangent becomes subnormal in {dtype}, whose {begin} ({lost.subnormal:.1%} of it)"
        return f"its cotangent rounds away in {dtype}: its relative error grows to {lost.error:.2g}"


def located(node: Node) -> tuple[str, str, Place | None]:
    """The operation, module and line of a node."""
    return node.operation, node.calls[-1].name if node.calls else "", node.place


def matched(graph: Graph, reference: Graph) -> dict[int, int] | None:
    """For each node that is no cast, the node of the reference that computed the same; None if they are not alike."""
    ours, theirs = _skeleton(graph), _skeleton(reference)
    if [shape for _, shape in ours] != [shape for _, shape in theirs]:
        return None
    return {index: other for (index, _), (other, _) in zip(ours, theirs, strict=True)}


def exact_cotangents(run: Evaluated, cotangents: Sequence[Tensor]) -> tuple[list[Tensor | None], Exact]:
    """The gradients of the reference, and the cotangents that its nodes received, which are kept."""
    seen: dict[int, Sequence[Tensor | None]] = {}

    def look(index: int, arrived: Sequence[Tensor | None]) -> None:
        seen[index] = [None if each is None else each.detach() for each in arrived]

    return run.watched(cotangents, look), seen


def losses_at(
    run: Evaluated, cotangents: Sequence[Tensor], match: Mapping[int, int], exact: Exact
) -> tuple[list[Tensor | None], dict[int, Lost]]:
    """The gradients of a run, and what the cotangents lost that its nodes received; of several, the worst."""
    waiting: list[tuple[int, Tensor]] = []

    def look(index: int, arrived: Sequence[Tensor | None]) -> None:
        for found, meant in zip(arrived, exact.get(match.get(index, -1), ()), strict=False):
            if meant is not None and meant.layout is torch.strided and not meant.is_nested:
                waiting.append((index, figures(found, meant)))

    gradients = run.watched(cotangents, look)
    lost: dict[int, Lost] = {}
    for (index, _), one in zip(waiting, read([each for _, each in waiting]), strict=True):
        known = lost.get(index)
        if known is None or one.error > known.error:
            lost[index] = one
    return gradients, lost


def find_places(graph: Graph, lost: Mapping[int, Lost]) -> tuple[Where, ...]:
    """Where something is lost first, in the order of the backward pass; at most ``MOST`` of each kind."""
    told: dict[Kind, int] = {}
    found = []
    for where in _all_places(graph, lost):
        told[where.kind] = told.get(where.kind, 0) + 1
        if told[where.kind] <= MOST:
            found.append(where)
    return tuple(found)


def _all_places(graph: Graph, lost: Mapping[int, Lost]) -> Iterator[Where]:
    users: dict[int, list[int]] = {}
    for edge in graph.edges:
        users.setdefault(edge.producer, []).append(edge.consumer)
    # A cast is no node of the reference: what it received is what those received that use its result.
    received = dict(lost)
    for node in reversed(graph.nodes):
        if node.index not in received and users.get(node.index):
            known = [received[user] for user in users[node.index] if user in received]
            if known:
                received[node.index] = max(known, key=lambda each: each.error)
    every = list(lost.values())
    for node in reversed(graph.nodes):
        one = lost.get(node.index)
        makers = users.get(node.index)
        if one is None or not node.produces or not makers:  # what no node made is the seed, which is told by itself
            continue
        before = [received[user] for user in makers if user in received]
        kind = _kind(one, before, every, ROUNDINGS * torch.finfo(node.produces[0].dtype).eps)
        if kind is not None:
            yield Where(kind, *located(graph.nodes[max(makers)]), node.produces[0].dtype, one)


def _kind(one: Lost, before: Sequence[Lost], every: Sequence[Lost], rough: float) -> Kind | None:
    """What was born in a cotangent that none of those has from which it was made."""
    if one.overflowed:
        return None if any(each.overflowed for each in before) else "overflow"
    if any(each.overflowed for each in before):
        return None
    if one.zeroed - max((each.zeroed for each in before), default=0.0) >= SHARE:
        return "underflow"
    if one.subnormal - max((each.subnormal + each.zeroed for each in before), default=0.0) >= SHARE:
        return "subnormal"
    if one.zeroed + one.subnormal < SHARE and not is_nothing(one, every):
        worst = max((each.error for each in before), default=0.0)
        if one.error >= max(rough, ROUGH) and one.error > JUMP * worst:
            return "rounding"
    return None


def _skeleton(graph: Graph) -> list[tuple[int, Shape]]:
    """The nodes that are no casts, each with what it is: its operation, its shapes, and what it was given by which.

    They are numbered as a walk from the outputs meets them, which two graphs that are alike have in common.
    """
    givers: dict[int, list[tuple[int, int]]] = {}
    for edge in sorted(graph.edges, key=lambda edge: (edge.consumer, edge.input)):
        givers.setdefault(edge.consumer, []).append((edge.producer, edge.output))

    def behind_casts(node: int, output: int) -> tuple[int, int]:
        while graph.nodes[node].operation in _CASTS and node in givers:
            node, output = givers[node][0]
        return node, output

    numbers: dict[int, int] = {}
    stack = [behind_casts(each.node, each.number)[0] for each in reversed(graph.outputs)]
    given: dict[int, list[tuple[int, int]]] = {}
    while stack:
        node = stack.pop()
        if node not in numbers:
            numbers[node] = len(numbers)
            given[node] = [behind_casts(*giver) for giver in givers.get(node, ())]
            stack += [giver for giver, _ in reversed(given[node])]
    return [
        (
            node,
            (
                graph.nodes[node].operation,
                tuple(facts.shape for facts in graph.nodes[node].produces),
                tuple((numbers[giver], output) for giver, output in given[node]),
            ),
        )
        for node in numbers
    ]
