"""What a graph keeps in memory, by module and by operation, and what would keep less."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pullback.errors import ValueMismatch
from pullback.graph.values import Edge, Facts, ModuleCall, Node, Saved, Storage
from pullback.words import human

OUTSIDE = "(outside modules)"
VIEWS = frozenset(
    {
        "Alias",
        "AsStrided",
        "Detach",
        "Diagonal",
        "Expand",
        "Permute",
        "ReshapeAlias",
        "Select",
        "Slice",
        "Split",
        "Squeeze",
        "T",
        "Transpose",
        "Unbind",
        "UnsafeSplit",
        "UnsafeView",
        "Unsqueeze",
        "View",
        "ViewAsComplex",
        "ViewAsReal",
    }
)
_RESULTS = ("result", "output")  # what torch calls a node's own results among what it keeps; they have no producer
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MOST_ROWS = 12
_MOST_MODULES = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a name, the bytes that are first kept there, and in how many tensors."""

    name: str
    bytes: int
    tensors: int


class Memory:
    """The bytes that a backward pass keeps alive, each storage counted once, largest first.

    ``kept`` is what only the graph keeps: what dropping it frees. ``owned`` belongs to parameters, buffers and inputs,
    which live on without it. A storage that several nodes keep is counted where it was kept first.
    """

    def __init__(self, nodes: Sequence[Node], edges: Sequence[Edge], storages: Sequence[Storage]) -> None:
        self._nodes = nodes
        self._storages = storages
        self._producers: list[list[int]] = [[] for _ in nodes]
        for edge in edges:
            self._producers[edge.consumer].append(edge.producer)

    @cached_property
    def kept(self) -> int:
        """Bytes that only the graph keeps."""
        return sum(storage.bytes for storage in self._storages if storage.owner is None)

    @cached_property
    def owned(self) -> int:
        """Bytes that the graph keeps too, but that live on without it."""
        return sum(storage.bytes for storage in self._storages if storage.owner is not None)

    @property
    def freed(self) -> bool:
        """Whether a backward pass has already freed what some node kept."""
        return any(node.freed for node in self._nodes)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Why the sum is a lower bound: what some nodes keep cannot be seen from Python. Empty when all was seen."""
        seen = dict.fromkeys(f"{node.operation}: {node.hidden}" for node in self._nodes if node.hidden)
        return tuple(seen)

    def by_operation(self) -> tuple[Row, ...]:
        """Kept bytes by operation, largest first."""
        return self._table(lambda node: node.operation)

    def by_module(self) -> tuple[Row, ...]:
        """Kept bytes by the innermost module, largest first."""
        return self._table(lambda node: (node.calls[-1].name or node.calls[-1].kind) if node.calls else OUTSIDE)

    def by_line(self) -> tuple[Row, ...]:
        """Kept bytes by the line that made the node, largest first; empty where nothing was recorded."""
        if not any(node.place for node in self._nodes):
            return ()
        return self._table(lambda node: str(node.place) if node.place else "(not recorded)")

    def by_node(self) -> dict[int, int]:
        """Kept bytes by the index of the node that is the first to keep them."""
        kept: dict[int, int] = defaultdict(int)
        for number, node in self._first().items():
            kept[node.index] += self._storages[number].bytes
        return dict(kept)

    def inside(self, module: str) -> int:
        """Bytes first kept inside a module, with the modules in it.

        Raises:
            ValueMismatch: There is no module of this name.
        """
        inside = self._inside(module, "inside")
        return sum(self._storages[number].bytes for number, node in self._first().items() if node.index in inside)

    def checkpointed(self, module: str) -> int:
        """Bytes that ``torch.utils.checkpoint`` around a module would save.

        What only nodes inside it keep goes. What comes in from outside stays, and is kept even if nothing kept it yet.

        Raises:
            ValueMismatch: There is no module of this name.
        """
        call_of = self._inside(module, "checkpointed")
        stays = {number for number, storage in enumerate(self._storages) if storage.owner is not None}
        here: set[int] = set()
        storage_of: dict[int, int] = {}
        for node in self._nodes:
            call = call_of.get(node.index)
            for saved in node.saved:
                made = self._base(node.index if saved.producer is None else saved.producer)
                if saved.producer is not None or _is_result(saved, node):
                    storage_of[made] = saved.storage
                if call is not None:
                    here.add(saved.storage)
                if call is None or call_of.get(made) != call:
                    stays.add(saved.storage)
        if not here:
            return 0  # then checkpointing keeps nothing either
        entering = {
            base
            for index, call in call_of.items()
            for producer in self._producers[index]
            if call_of.get(base := self._base(producer)) != call and self._nodes[base].sequence is not None
        }
        stays |= {storage_of[base] for base in entering if base in storage_of}
        new = sum(size_of(self._nodes[base].produces[0]) for base in entering if base not in storage_of)
        return sum(self._storages[number].bytes for number in here - stays) - new

    def _inside(self, module: str, asked: str) -> dict[int, ModuleCall]:
        """The nodes inside a module, each with the outermost call of it."""
        inside = {node.index: call for node in self._nodes for call in reversed(node.calls) if call.name == module}
        if not inside:
            known = list(dict.fromkeys(call.name for node in self._nodes for call in node.calls))
            raise ValueMismatch(
                f"no module is called {module!r} in this graph",
                got=", ".join(known[:20]) or "a graph without modules",
                fix=f"graph.memory().{asked}({known[0]!r})" if known else "with pb.record(): y = model(x)",
            )
        return inside

    def _base(self, index: int) -> int:
        """The node that made the storage which a node's result lies in: views lead to what they look at."""
        while self._nodes[index].operation in VIEWS and self._producers[index]:
            index = self._producers[index][0]
        return index

    def _first(self) -> dict[int, Node]:
        """The first node that keeps each storage which nobody else owns."""
        first: dict[int, Node] = {}
        for node in self._nodes:
            for saved in node.saved:
                if self._storages[saved.storage].owner is None:
                    first.setdefault(saved.storage, node)
        return first

    def _table(self, name_of: Callable[[Node], str]) -> tuple[Row, ...]:
        rows: dict[str, list[int]] = defaultdict(list)
        for number, node in self._first().items():
            rows[name_of(node)].append(self._storages[number].bytes)
        table = (Row(name, sum(sizes), len(sizes)) for name, sizes in rows.items())
        return tuple(sorted(table, key=lambda row: (-row.bytes, row.name)))

    def _advice(self) -> list[str]:
        if self.freed:
            return ["A backward pass has freed what this graph kept; only what is listed is left."]
        if not self.kept:
            return []
        said = [
            f"Under torch.no_grad() nothing of it would be kept: {human(self.kept)} less.",
            "A backward pass frees it at its end; with retain_graph=True it stays for as long as the outputs live.",
        ]
        names = dict.fromkeys(call.name for node in self._nodes for call in node.calls if call.name)
        saves = sorted(((self.checkpointed(name), name) for name in list(names)[:_MOST_MODULES]), reverse=True)
        said += [
            f"torch.utils.checkpoint around {name} would save {human(size)}."
            for size, name in saves[:3]
            if size > 0.05 * self.kept
        ]
        return said

    def __str__(self) -> str:
        head = f"{human(self.kept)} kept by the graph alone, {human(self.owned)} of parameters and inputs beside it"
        parts = [head]
        for title, rows in (("module", self.by_module()), ("operation", self.by_operation()), ("line", self.by_line())):
            if rows and not (title == "module" and len(rows) == 1 and rows[0].name == OUTSIDE):
                parts.append(_as_text(title, rows if len(rows) <= _MOST_ROWS else _alike(rows)))
        parts += ["\n".join(self._advice())] if self._advice() else []
        parts += ["A lower bound: " + "; ".join(self.hidden)] if self.hidden else []
        return "\n\n".join(parts)

    __repr__ = __str__


def _is_result(saved: Saved, node: Node) -> bool:
    """Whether what a node keeps is what it made, and not a mask or a factor beside it; that has no producer either."""
    return saved.name.startswith(_RESULTS) and saved.facts == node.produces[0]


def size_of(facts: Facts) -> int:
    """The bytes of a dense tensor of this shape and dtype."""
    return math.prod(facts.shape) * facts.dtype.itemsize


def _alike(rows: Sequence[Row]) -> list[Row]:
    """Rows of modules that differ by their numbers only, such as ``layers.*.linear``, in one."""
    together: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[_NUMBER.sub("*", row.name)].append(row)
    merged = [
        rows[0] if len(rows) == 1 else Row(name, sum(row.bytes for row in rows), sum(row.tensors for row in rows))
        for name, rows in together.items()
    ]
    return sorted(merged, key=lambda row: (-row.bytes, row.name))


def _as_text(title: str, rows: Sequence[Row]) -> str:
    shown, rest = list(rows[:_MOST_ROWS]), rows[_MOST_ROWS:]
    if rest:
        shown.append(Row(f"{len(rest)} more", sum(row.bytes for row in rest), sum(row.tensors for row in rest)))
    width = max(len(title), *(len(row.name) for row in shown))
    lines = [f"{title:<{width}}  {'kept':>10}  {'tensors':>7}"]
    lines += [f"{row.name:<{width}}  {human(row.bytes):>10}  {row.tensors:>7}" for row in shown]
    return "\n".join(lines)
