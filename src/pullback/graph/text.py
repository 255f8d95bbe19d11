"""The graph as a tree of text: modules, and in them the lines that made the nodes; what repeats is shown once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING

from pullback.graph.groups import Branch
from pullback.graph.values import Node, Place
from pullback.words import human, many

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from pullback.graph.graph import Graph

_WIDTH = 120
_MOST_PARTS = 40  # of one branch
_MOST_LINES = 300
_DEEPEST = 16  # levels that leave room for words beside them
_MOST_OPERATIONS = 12  # in one line


def as_text(graph: Graph) -> str:
    """The tree without colours, for print."""
    from rich.console import Console  # noqa: PLC0415 - heavy, and not needed to differentiate

    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(as_tree(graph))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def as_tree(graph: Graph) -> Tree:
    """The tree with colours, as rich prints it."""
    from rich.tree import Tree  # noqa: PLC0415 - heavy, and not needed to differentiate

    tree = Tree(_styled(_head(graph), ""))
    writer = _Writer(graph)
    writer.write(graph.tree, tree)
    return tree


class _Writer:
    """Writes branches into a tree until there are too many lines; iterative, as modules may nest deeply."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.kept = graph.memory().by_node()
        self.given = _leaves_given(graph)
        self.lines = 0

    def write(self, root: Branch, tree: Tree) -> None:
        stack: list[tuple[Branch, Tree, Place | None, int]] = [(root, tree, None, 0)]
        while stack:
            branch, at, told, depth = stack.pop()
            if depth == _DEEPEST:
                at.add(_styled("… deeper; graph.html(path) shows all", ""))
                continue
            inner: list[tuple[Branch, Tree, Place | None, int]] = []
            parts = list(self._parts(branch))
            for part in parts[:_MOST_PARTS]:
                if self.lines >= _MOST_LINES:
                    at.add(_styled("… more; graph.html(path) shows all", ""))
                    return
                self.lines += 1
                if isinstance(part, list):
                    at.add(_styled("", "", self._line(part, told)))
                    continue
                only = list(self._parts(part))
                if len(only) == 1 and isinstance(only[0], list) and not part.times:
                    about = f"{detail}: " if (detail := _detail(part)) else ""
                    at.add(_styled(f"{part.label}  ", "bold", about + self._line(only[0], told)))
                else:
                    place = self._place(part)
                    new = place if place != told else None
                    inner.append((part, at.add(self._branch(part, new)), place or told, depth + 1))
            if len(parts) > _MOST_PARTS:
                at.add(_styled(f"… {len(parts) - _MOST_PARTS} more", ""))
            stack.extend(reversed(inner))

    def _parts(self, branch: Branch) -> Iterator[Branch | list[Node]]:
        """Branches, and between them the nodes of each line together; of repetitions the first."""
        children = branch.children
        if branch.times:
            first = children[0]
            children = first.children if isinstance(first, Branch) and first.is_step else [first]
        waiting: list[Node] = []
        for child in children:
            if isinstance(child, Branch):
                yield from _lines(waiting)
                waiting = []
                yield child
            elif self.nodes[child].sequence is not None:
                waiting.append(self.nodes[child])
        yield from _lines(waiting)

    def _place(self, branch: Branch) -> Place | None:
        """The line that made all of a branch, if one did."""
        places = {node.place for index in branch.nodes() if (node := self.nodes[index]).sequence is not None}
        return places.pop() if len(places) == 1 else None

    def _branch(self, branch: Branch, place: Place | None) -> Text:
        inside = sum(self.nodes[index].sequence is not None for index in branch.nodes())
        kept = sum(self.kept.get(index, 0) for index in branch.nodes())
        facts = [_detail(branch), many(inside, "node"), f"keeps {human(kept)}" if kept else ""]
        return _styled(f"{branch.label}  ", "bold", " · ".join(filter(None, facts)) + _written(place))

    def _line(self, nodes: Sequence[Node], told: Place | None) -> str:
        """Operations of one line, what comes out, and the line itself unless a heading has told it."""
        runs = [(name, len(list(run))) for name, run in groupby(node.operation for node in nodes)]
        names = [f"{times} × {name}" if times > 1 else name for name, times in runs]
        shown = ", ".join(names[:_MOST_OPERATIONS]) + (", …" if len(names) > _MOST_OPERATIONS else "")
        leaves = list(dict.fromkeys(name for node in nodes for name in self.given.get(node.index, ())))
        kept = sum(self.kept.get(node.index, 0) for node in nodes)
        last = nodes[-1]
        facts = [
            f"→ {last.produces[0]}" if last.produces else "",
            last.name or "",
            f"uses {', '.join(leaves[:4])}{', …' if len(leaves) > 4 else ''}" if leaves else "",
            f"keeps {human(kept)}" if kept else "",
        ]
        return f"{shown}  {' · '.join(filter(None, facts))}" + _written(last.place if last.place != told else None)


def _detail(branch: Branch) -> str:
    """The class of a module, unless it is also what the module is called."""
    return "" if branch.detail == branch.label else branch.detail


def _lines(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    for _, line in groupby(nodes, key=lambda node: node.place):
        yield list(line)


def _written(place: Place | None) -> str:
    return f"   {short(place)}  {place.text}" if place else ""


def short(place: Place) -> str:
    """A line of the user's program by the name of its file alone."""
    return f"{PurePath(place.file).name}:{place.line}"


def _head(graph: Graph) -> str:
    operations = sum(node.sequence is not None for node in graph.nodes)
    outputs = ", ".join(f"{output.name} {output.facts}" for output in graph.outputs[:4])
    more = f" and {len(graph.outputs) - 4} more" if len(graph.outputs) > 4 else ""
    kept = human(graph.memory().kept)
    leaves = len(graph.nodes) - operations
    ends = "1 leaf" if leaves == 1 else f"{leaves:,} leaves"
    return f"{outputs}{more} · {many(operations, 'node')}, {ends} · keeps {kept}"


def _leaves_given(graph: Graph) -> dict[int, list[str]]:
    """The names of the leaves that each node was given; those of a transposed weight go to what uses it."""
    given: dict[int, list[str]] = {}
    for edge in graph.edges:
        node = graph.nodes[edge.producer]
        if node.kind in {"parameter", "input"}:
            given.setdefault(edge.consumer, []).append((node.name or "an unnamed leaf").rpartition(".")[2])
    return given


def _styled(text: str, style: str, faint: str = "") -> Text:
    from rich.text import Text  # noqa: PLC0415 - heavy, and not needed to differentiate

    return Text.assemble((text, style), (faint, "dim"))
