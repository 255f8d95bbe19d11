"""The graph as a picture: what every box, group and arrow says."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pullback.graph.groups import Branch
from pullback.graph.memory import Row
from pullback.graph.replaying.statistics import Statistics
from pullback.graph.replaying.steps import Figures, Replay, Values, share
from pullback.graph.replaying.steps import Step as Taken
from pullback.graph.values import Node
from pullback.view.picture import NOTHING, Arrow, Box, Card, Group, Picture, Source, Step, Table
from pullback.words import human

if TYPE_CHECKING:
    from pullback.graph.graph import Graph

_COTANGENT = ("", "shape", "norm", "min", "max", "zeros", "NaN", "inf", "subnormal")
_SAVED = ("name", "tensor", "bytes", "belongs to")


def outline_of(graph: Graph) -> Picture:
    """The picture without what its cards say: boxes, groups and arrows."""
    return _Outline(graph).picture()


def picture_of(graph: Graph, replay: Replay | None, *, trouble: str = "") -> Picture:
    """The picture of a graph with its cards, and with the steps of a replay; ``trouble`` says why there is none."""
    return _Painter(graph, replay, trouble).picture()


class _Outline:
    """Draws boxes, groups and arrows; what more there is to say of each is left to who draws cards."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.text = functools.cache(str)

    def picture(self) -> Picture:
        graph = self.graph
        groups = {branch.key: (branch, parent) for branch, parent in _branches(graph.tree)}
        home = {child: key for key, (branch, _) in groups.items() for child in branch.children if type(child) is int}
        return Picture(
            title=", ".join(output.name for output in graph.outputs[:4]),
            facts=self.facts(),
            boxes=tuple(self._box(node, home.get(node.index)) for node in graph.nodes) + self._ends(),
            groups=tuple(self.group(branch, parent) for branch, parent in groups.values()),
            arrows=tuple(self._arrows()),
            steps=self.steps(),
            tables=self.tables(),
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        return ()

    def tables(self) -> tuple[Table, ...]:
        return ()

    def steps(self) -> tuple[Step, ...]:
        return ()

    def card(self, node: Node) -> Card:
        return Card()

    def amounts(self, node: Node) -> Mapping[str, float]:
        return NOTHING

    def group(self, branch: Branch, parent: str | None) -> Group:
        return Group(branch.key, branch.label, branch.detail, parent)

    def _box(self, node: Node, group: str | None) -> Box:
        leaf = node.sequence is None
        label = (node.name or node.kind) if leaf else node.operation
        if leaf and group is not None:
            label = label.rpartition(".")[2]
        made = node.produces
        detail = self.text(made[0]) if len(made) == 1 else f"{len(made)} outputs" if made else ""
        return Box(f"n{node.index}", label, detail, node.kind, group, self.card(node), self.amounts(node))

    def _ends(self) -> tuple[Box, ...]:
        return tuple(
            Box(f"o{number}", output.name, str(output.facts), "output", None, Card((("name", output.name),)))
            for number, output in enumerate(self.graph.outputs)
        )

    def _arrows(self) -> Iterator[Arrow]:
        nodes = self.graph.nodes
        for producer, number, consumer, _ in self.graph.edges:
            made = nodes[producer].produces
            yield Arrow(f"n{producer}", f"n{consumer}", self.text(made[number]) if made else "")
        for number, output in enumerate(self.graph.outputs):
            yield Arrow(f"n{output.node}", f"o{number}", str(output.facts))


class _Painter(_Outline):
    """Draws the outline, and a card for everything in it."""

    def __init__(self, graph: Graph, replay: Replay | None, trouble: str) -> None:
        super().__init__(graph)
        self.replay = replay
        self.trouble = trouble
        self.kept = graph.memory().by_node()
        self.taken: Mapping[int, Taken] = {step.node: step for step in replay.steps} if replay else {}
        self.births: dict[int, list[str]] = {}
        for birth in replay.births if replay else ():
            self.births.setdefault(birth.node, []).append(birth.text)

    def facts(self) -> tuple[tuple[str, str], ...]:
        memory = self.graph.memory()
        operations = sum(node.sequence is not None for node in self.graph.nodes)
        return (
            ("nodes", f"{operations:,}"),
            ("leaves", f"{len(self.graph.nodes) - operations:,}"),
            ("kept by the graph", human(memory.kept)),
            ("of parameters and inputs", human(memory.owned)),
            *([("no replay", self.trouble)] if self.trouble else []),
        )

    def tables(self) -> tuple[Table, ...]:
        memory = self.graph.memory()
        rows = (("module", memory.by_module()), ("operation", memory.by_operation()), ("line", memory.by_line()))
        return tuple(_memory_table(title, found) for title, found in rows if found)

    def steps(self) -> tuple[Step, ...]:
        return tuple(map(self._step, self.replay.steps)) if self.replay else ()

    def card(self, node: Node) -> Card:
        facts = [
            ("operation", node.operation),
            ("name", node.name or ""),
            ("made", ", ".join(map(str, node.produces))),
            ("was given", ", ".join(map(str, filter(None, node.receives)))),
            ("module", " › ".join(call.name or call.kind for call in node.calls)),
            ("keeps", human(self.kept[node.index]) if node.index in self.kept else ""),
            ("not seen", node.hidden),
            ("freed", "by an earlier backward pass" if node.freed else ""),
            *(("found here", text) for text in self.births.get(node.index, ())),
        ]
        place = node.place
        source = Source(place.path, place.line, place.function, place.text) if place else None
        saved = [
            (each.name, str(each.facts), human(storage.bytes), storage.owner or "")
            for each in node.saved
            for storage in (self.graph.storages[each.storage],)
        ]
        tables = [Table("saved for backward", _SAVED, tuple(saved))] if saved else []
        step = self.taken.get(node.index)
        return Card(tuple(fact for fact in facts if fact[1]), source, (*tables, *(_cotangents(step) if step else ())))

    def amounts(self, node: Node) -> Mapping[str, float]:
        amounts: dict[str, float] = {}
        if node.sequence is not None:
            amounts["memory"] = self.kept.get(node.index, 0)
        step = self.taken.get(node.index)
        if step:
            amounts["gradient"] = max((each.norm for each in step.incoming if each), default=0.0)
            if node.sequence is not None:
                amounts["time"] = step.seconds
        return amounts

    def group(self, branch: Branch, parent: str | None) -> Group:
        inside = [self.graph.nodes[index] for index in branch.nodes()]
        amounts: dict[str, float] = {}
        for node in inside:
            for name, amount in self.amounts(node).items():
                before = amounts.get(name, 0.0)
                amounts[name] = max(before, amount) if name == "gradient" else before + amount
        operations = sum(node.sequence is not None for node in inside)
        facts = [
            ("class", branch.detail),
            ("repeats", str(branch.times) if branch.times else ""),
            ("nodes", f"{operations:,}"),
            ("parameters", str(sum(node.kind == "parameter" for node in inside) or "")),
            ("keeps", human(amounts.get("memory", 0))),
        ]
        card = Card(tuple(fact for fact in facts if fact[1]))
        return Group(branch.key, branch.label, branch.detail, parent, card, amounts)

    def _step(self, step: Taken) -> Step:
        what = self.graph.labels[step.node]
        found = "; ".join(self.births.get(step.node, ()))
        return Step(f"n{step.node}", f"{what}: {found}" if found else what, Card((), None, tuple(_cotangents(step))))


def _branches(root: Branch) -> Iterator[tuple[Branch, str | None]]:
    """All branches below the root with the key of the one around each; outer ones first."""
    stack: list[tuple[Branch, str | None]] = [
        (child, None) for child in reversed(root.children) if isinstance(child, Branch)
    ]
    while stack:
        branch, parent = stack.pop()
        yield branch, parent
        stack.extend((child, branch.key) for child in reversed(branch.children) if isinstance(child, Branch))


def _cotangents(step: Taken) -> list[Table]:
    rows = [*_rows("incoming", step.incoming), *_rows("outgoing", step.outgoing)]
    tables = [Table("cotangents", _COTANGENT, tuple(rows))] if rows else []
    return tables + _product(step)


def _rows(side: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    for number, each in enumerate(figures):
        yield (f"{side} {number}", *(_figures(each) if each else ("none", *[""] * (len(_COTANGENT) - 2))))


def _figures(each: Statistics) -> tuple[str, ...]:
    span = ("", "") if each.low is None or each.high is None else (f"{each.low:.4g}", f"{each.high:.4g}")
    shares = (each.zeros, each.nans, each.infs, each.subnormal)
    return (str(each.shape), f"{each.norm:.4g}", *span, *(share(part) if part else "" for part in shares))


def _product(step: Taken) -> list[Table]:
    """``uᵀJ`` with its numbers: a row of J for each element of u, and the product below."""
    if step.local is None or step.local.matrix is None:
        return []
    seeds = _numbers(step.incoming_values)
    products = _numbers(step.outgoing_values)
    head = ("u", *["J"] * len(products))
    rows = [
        (f"{seed:.4g}", *(f"{entry:.4g}" for entry in row)) for seed, row in zip(seeds, step.local.matrix, strict=True)
    ]
    return [Table("uᵀJ", head, (*rows, ("uᵀJ =", *(f"{each:.4g}" for each in products))))]


def _numbers(values: Values) -> list[float]:
    return [float(each) for value in values if value is not None for each in value.flatten().tolist()]


def _memory_table(title: str, rows: tuple[Row, ...]) -> Table:
    shown = tuple((row.name, human(row.bytes), str(row.tensors)) for row in rows)
    return Table(f"memory by {title}", (title, "kept", "tensors"), shown)
