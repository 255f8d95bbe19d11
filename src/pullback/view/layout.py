"""Rows for the children of every group, each group laid out alone, by the layered engine of ``graphlay``.

An arrow that leaves a group goes through the door at its lower edge, and one that enters it through the door at its
upper edge, so that each group knows all the ways through it whatever is folded around it. Between two neighbours of a
group an arrow is a leg; a leg that crosses rows holds a place in each of them, and never runs through a box.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

from pullback.errors import StrategyError
from pullback.view.shapes import HEIGHT, width
from pullback.view.tree import ROOT, Tree

IN, OUT, WAY = -2, -3, -4
RANKS = {IN: "first", OUT: "last"}
NARROW = 8.0  # the place of a door, or of a leg that crosses a row
OPTIONS = {
    "direction": "topbottom",
    "routing": {"style": "diagonal"},
    "spacing": {"layer_gap": 40.0, "node_gap": 30.0, "dummy_gap": 16.0, "isolated_gap": 30.0},
}
QUICK = {"effort": "fast", "coords": {"placement": "brandes_koepf"}}
CAREFUL = 3000  # pictures with more boxes and groups are laid out quickly


@dataclass(frozen=True, slots=True)
class Item:
    """Something in a row: a child by its number, a door (``IN``, ``OUT``), or a leg that crosses the row (``WAY``)."""

    what: int
    x: float
    row: int


@dataclass(frozen=True, slots=True)
class Leg:
    """A way between two items, by their places in the list of items, over the ways in the rows between them."""

    source: int
    target: int
    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The layout of one group with all its children folded; items are sorted by row and then by ``x``."""

    items: tuple[Item, ...]
    legs: tuple[Leg, ...]


def engine() -> ModuleType:
    """The layout library.

    Raises:
        StrategyError: If it is not installed.
    """
    try:
        return importlib.import_module("graphlay")
    except ImportError:
        raise StrategyError(
            "A drawing needs the layout library graphlay, which is not installed.",
            got="no module named graphlay",
            fix="pip install 'pullback[graph]'; dot() needs no layout",
        ) from None


def legs(tree: Tree) -> dict[int, list[tuple[int, int]]]:
    """For each group (and ``ROOT``) the pairs of children or doors between which arrows run, each pair once."""
    found: dict[int, dict[tuple[int, int], None]] = defaultdict(dict)
    for source, target, _ in tree.arrows:
        up, down = [source, *tree.above(source)], [target, *tree.above(target)]
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        if len(up) == 1 or len(down) == 1:
            continue  # within a group and the group itself, or from a box to itself
        found[up[-1]][up[-2], down[-2]] = None
        for child, group in pairwise(up[:-1]):
            found[group][child, OUT] = None
        for child, group in pairwise(down[:-1]):
            found[group][IN, child] = None
    return {group: list(pairs) for group, pairs in found.items()}


def layouts(tree: Tree) -> dict[int, Rows]:
    """The rows of every group and of the drawing itself.

    Groups that look alike (repeated layers) are laid out once.

    Raises:
        StrategyError: If the layout library is not installed.
    """
    graphlay = engine()
    pairs = legs(tree)
    options = OPTIONS if len(tree.nodes) <= CAREFUL else OPTIONS | QUICK
    known: dict[tuple[Any, ...], Rows] = {}
    out = {}
    for group in (ROOT, *(node.index for node in tree.nodes if node.holds)):
        ways = pairs.get(group, ())
        what = [*tree.children(group), *(door for door in (IN, OUT) if any(door in pair for pair in ways))]
        place = {item: i for i, item in enumerate(what)}
        look = (
            tuple(NARROW if item < 0 else width(tree.nodes[item]) for item in what),
            tuple(RANKS.get(item, "free") for item in what),
            tuple((place[a], place[b]) for a, b in ways),
        )
        if look not in known:
            known[look] = _rows(graphlay, *look, options)
        rows = known[look]
        out[group] = Rows(
            tuple(Item(i.what if i.what == WAY else what[i.what], i.x, i.row) for i in rows.items), rows.legs
        )
    return out


def _rows(
    graphlay: ModuleType,
    sizes: tuple[float, ...],
    ranks: tuple[str, ...],
    edges: tuple[tuple[int, int], ...],
    options: dict[str, Any],
) -> Rows:
    """Lay out one group, its items told by their places in ``sizes``.

    A leg against the order of the rows gets no ways: it is drawn around them.
    """
    graph = graphlay.Graph()
    for size, rank in zip(sizes, ranks, strict=True):
        graph.node(width=size, height=HEIGHT, rank=rank)
    for a, b in (*edges, *_moored(ranks, edges)):
        graph.edge(a, b)
    drawn = graphlay.layout(graph, options=options)
    heights = sorted({node["center"]["y"] for node in drawn.nodes})
    row = {y: i for i, y in enumerate(heights)}
    placed = [Item(i, node["center"]["x"], row[node["center"]["y"]]) for i, node in enumerate(drawn.nodes)]
    over = []
    for (a, b), edge in zip(edges, drawn.edges[: len(edges)], strict=True):
        crossed = range(placed[a].row + 1, placed[b].row)
        over.append(range(len(placed), len(placed) + len(crossed)))
        placed += [Item(WAY, _at(edge["points"], heights[r]), r) for r in crossed]
    order = sorted(range(len(placed)), key=lambda i: (placed[i].row, placed[i].x, i))
    new = {old: i for i, old in enumerate(order)}
    return Rows(
        tuple(Item(placed[i].what, round(placed[i].x, 1), placed[i].row) for i in order),
        tuple(Leg(new[a], new[b], tuple(new[i] for i in o)) for (a, b), o in zip(edges, over, strict=True)),
    )


def _moored(ranks: tuple[str, ...], edges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Edges from what has none to the last row, below which it would stand in the way of the door."""
    if RANKS[OUT] not in ranks:
        return []
    joined = {end for edge in edges for end in edge}
    return [(i, ranks.index(RANKS[OUT])) for i in range(len(ranks)) if i not in joined]


def _at(points: list[dict[str, float]], y: float) -> float:
    """Where a route crosses a height."""
    for a, b in pairwise(points):
        if a["y"] <= y <= b["y"]:
            share = (y - a["y"]) / (b["y"] - a["y"]) if b["y"] > a["y"] else 0.0
            return a["x"] + share * (b["x"] - a["x"])
    return points[-1]["x"]
