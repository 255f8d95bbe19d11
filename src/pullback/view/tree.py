"""A picture as a tree of numbered nodes: boxes are its leaves, groups its branches, and the drawing its root.

A group with too many children to be looked at gets parts of consecutive children, so that a program of ten thousand
operations without a single module is still a drawing that folds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pullback.errors import ValueMismatch
from pullback.view.picture import Box, Card, Group, Kind, Picture

ROOT = -1
CROWD = 60  # more children than this in one group are told apart by nobody
PART = 45  # children of a part, and parts of a part, at most
AT_FIRST = 60  # boxes that are visible before anything is unfolded by hand

SUMMED = ("memory", "time")


@dataclass(slots=True)
class Node:
    """A box, a group, or a part of a group.

    Attributes:
        index: Its number in the tree.
        key: Its key in the picture; a part has one of its own.
        label: Its first line; the number of a part.
        detail: Its second line.
        kind: The kind of the box, or ``group``, or ``part``.
        parent: The number of the node around it, or ``ROOT``.
        card: What a click on it tells.
        amounts: Numbers by which it may be coloured.
        children: The numbers of what it holds, in the order in which they were made.
        boxes: How many boxes it holds, at any depth; 1 for a box.
    """

    index: int
    key: str
    label: str
    detail: str
    kind: Kind | Literal["group", "part"]
    parent: int
    card: Card
    amounts: Mapping[str, float]
    children: list[int] = field(default_factory=list)
    boxes: int = 1

    @property
    def holds(self) -> bool:
        """Whether it is a group or a part, which fold."""
        return self.kind in {"group", "part"}


@dataclass(slots=True)
class Tree:
    """The nodes by number, those at the top, and the arrows and steps of the picture by number.

    Attributes:
        nodes: Boxes, groups and parts.
        top: The numbers of the nodes at the top.
        arrows: Producer, user and label of each arrow.
        steps: The number of the box that each step visits.
    """

    nodes: list[Node]
    top: list[int]
    arrows: list[tuple[int, int, str]]
    steps: list[int]

    def children(self, index: int) -> list[int]:
        """What a node holds, or what is at the top."""
        return self.top if index == ROOT else self.nodes[index].children

    def above(self, index: int) -> list[int]:
        """The nodes around a node, innermost first, and at last ``ROOT``."""
        out = []
        while index != ROOT:
            index = self.nodes[index].parent
            out.append(index)
        return out


def tree(picture: Picture) -> Tree:
    """Number the boxes and groups of a picture, and make parts where a group holds too many.

    Raises:
        ValueMismatch: If two boxes or groups have one key, if an arrow or a step names a box, or anything a group, that
            is not there, or if a group is around itself.
    """
    groups, boxes = numbered(picture)
    items: tuple[Box | Group, ...] = (*picture.groups, *picture.boxes)
    nodes = [_node(i, item, groups) for i, item in enumerate(items)]
    out = Tree(
        nodes,
        [],
        [(find(boxes, a.source, "arrow"), find(boxes, a.target, "arrow"), a.label) for a in picture.arrows],
        [find(boxes, s.box, "step") for s in picture.steps],
    )
    _hang(out)
    for index in (ROOT, *range(len(picture.groups))):
        _make_parts(out, index)
    return out


def numbered(picture: Picture) -> tuple[dict[str, int], dict[str, int]]:
    """The number of each group, and of each box after them, by key.

    Raises:
        ValueMismatch: If two of them have one key.
    """
    groups = {group.key: i for i, group in enumerate(picture.groups)}
    boxes = {box.key: i for i, box in enumerate(picture.boxes, len(picture.groups))}
    if len(groups | boxes) < len(picture.groups) + len(picture.boxes):
        keys = Counter([*(group.key for group in picture.groups), *(box.key for box in picture.boxes)])
        raise ValueMismatch(
            "Two boxes or groups of a picture have the same key.",
            got=repr(keys.most_common(1)[0][0]),
            fix="give each box and each group a key of its own",
        )
    return groups, boxes


def find(numbers: Mapping[str, int], key: str, what: str) -> int:
    """The number of a key that an arrow or a step (a box) or a box or group (the group around it) names.

    Raises:
        ValueMismatch: If there is none.
    """
    if key not in numbers:
        named = "group" if what == "group" else "box"
        raise ValueMismatch(
            f"A picture has no {named} of this key, which its {what}s name.",
            got=repr(key),
            fix=f"add the {named} to the picture, or leave out what names it",
        )
    return numbers[key]


def _node(index: int, item: Box | Group, groups: Mapping[str, int]) -> Node:
    parent = ROOT if item.group is None else find(groups, item.group, "group")
    kind = item.kind if isinstance(item, Box) else "group"
    return Node(index, item.key, item.label, item.detail, kind, parent, item.card, item.amounts)


def _hang(out: Tree) -> None:
    """Give each group its children in the order of their first boxes; groups without boxes come last."""
    seen = [False] * len(out.nodes)
    for node in sorted(out.nodes, key=lambda node: node.holds):
        index, path = node.index, set[int]()
        while index != ROOT and not seen[index]:
            seen[index] = True
            path.add(index)
            parent = out.nodes[index].parent
            if parent in path:
                raise ValueMismatch(
                    "A group of a picture stands inside itself.",
                    got=repr(out.nodes[index].key),
                    fix="let groups name the group around them, or None at the top",
                )
            out.children(parent).append(index)
            index = parent
    for node in out.nodes:
        node.boxes = 0 if node.holds else 1
    for node in out.nodes:
        if not node.holds:
            for index in out.above(node.index)[:-1]:
                out.nodes[index].boxes += 1


def _make_parts(out: Tree, parent: int) -> None:
    """Split the children of a node into parts, and those into parts, until none has too many."""
    children = out.children(parent)
    if len(children) <= CROWD:
        return
    levels = math.ceil(math.log(len(children)) / math.log(PART))
    size = math.ceil(len(children) ** (1 / levels))
    keys = {node.key for node in out.nodes}
    for _ in range(levels - 1):
        rows = [children[i : i + size] for i in range(0, len(children), size)]
        children = [_part(out, parent, number, row, keys) for number, row in enumerate(rows, 1)]
    out.children(parent)[:] = children


def _part(out: Tree, parent: int, number: int, children: list[int], keys: set[str]) -> int:
    held = [out.nodes[child] for child in children]
    index = len(out.nodes)
    key = f"part {index}"
    while key in keys:
        key += "'"
    detail = held[0].label if held[0].label == held[-1].label else f"{held[0].label} … {held[-1].label}"
    part = Node(index, key, str(number), detail, "part", parent, Card(), _together(n.amounts for n in held), children)
    if held[0].kind == "part":
        part.detail = f"{held[0].detail.split(' … ')[0]} … {held[-1].detail.split(' … ')[-1]}"
    part.boxes = sum(node.boxes for node in held)
    for node in held:
        node.parent = index
    out.nodes.append(part)
    return index


def _together(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The amounts of a part: bytes and seconds are added; of norms the largest, or one that is not finite, counts."""
    out: dict[str, float] = {}
    for one in amounts:
        for name, value in one.items():
            if name not in out:
                out[name] = value
            elif name in SUMMED:
                out[name] += value
            elif math.isfinite(out[name]) and not value <= out[name]:
                out[name] = value
    return out


def open_at_first(tree: Tree) -> list[int]:
    """The groups that a drawing begins with unfolded: level by level from the top, while few boxes are visible."""
    opened: list[int] = []
    level, visible = [i for i in tree.top if tree.nodes[i].holds], len(tree.top)
    while level:
        visible += sum(len(tree.nodes[i].children) - 1 for i in level)
        if visible > AT_FIRST:
            break
        opened += level
        level = [child for i in level for child in tree.nodes[i].children if tree.nodes[child].holds]
    return opened
