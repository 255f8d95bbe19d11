"""The graph as a tree: modules inside modules, and repetitions of the same layer or the same step folded into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from pullback.graph.values import ModuleCall, Node

_LONGEST_UNIT = 512
_FEWEST_TIMES = 3


@dataclass(slots=True, eq=False)
class Branch:
    """Part of the graph that folds into one: a module call, repetitions, or one of the repetitions.

    Attributes:
        key: Unique in the tree.
        label: What it is called: the module's name, ``6 × layers.0``, ``step 3``.
        detail: The class of the module, or empty.
        children: Nodes by index, and branches, in the order in which they were made.
        times: How many repetitions it holds; 0 where it is no repetition.
    """

    key: str
    label: str
    detail: str
    children: list[int | Branch] = field(default_factory=list)
    times: int = 0

    @property
    def is_step(self) -> bool:
        """Whether it is one of the repetitions, for want of a module that holds it."""
        return self.key.startswith("s")

    def nodes(self) -> Iterator[int]:
        """All nodes inside, in order of the tree; iterative, as modules may nest deeply."""
        stack: list[int | Branch] = [self]
        while stack:
            part = stack.pop()
            if isinstance(part, Branch):
                stack.extend(reversed(part.children))
            else:
                yield part


def grouped(nodes: Sequence[Node]) -> Branch:
    """The tree of all nodes: by module calls, and then repetitions folded on every level."""
    root = _by_module(nodes)
    _Folding(nodes).fold(root)
    return root


def _by_module(nodes: Sequence[Node]) -> Branch:
    root = Branch("graph", "", "")
    found: dict[tuple[ModuleCall, ...], Branch] = {(): root}
    again = _called_again(nodes)
    for node in nodes:
        for depth in range(1, len(node.calls) + 1):
            path = node.calls[:depth]
            if path not in found:
                branch = Branch(f"m{len(found)}", _label(path, again), path[-1].kind)
                found[path] = branch
                found[path[:-1]].children.append(branch)
        found[node.calls].children.append(node.index)
    return root


def _called_again(nodes: Sequence[Node]) -> set[str]:
    """The names of modules that were called more than once."""
    return {call.name for node in nodes for call in node.calls if call.number}


def _label(path: Sequence[ModuleCall], again: set[str]) -> str:
    """The module's name as seen from the module around it."""
    call = path[-1]
    outer = path[-2].name if len(path) > 1 else ""
    name = call.name.removeprefix(f"{outer}.") if outer else call.name
    name = name or call.kind
    return f"{name} (call {call.number + 1})" if call.name in again else name


class _Folding:
    """Finds repetitions: parts are alike when their operations and shapes are, in the same order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.numbers: dict[object, int] = {}
        self.alike: dict[Branch, int] = {}
        self.keys = count()

    def fold(self, root: Branch) -> None:
        """Fold from the inside out, so that what is alike inside is seen as alike."""
        order, stack = [], [root]
        while stack:
            branch = stack.pop()
            order.append(branch)
            stack.extend(child for child in branch.children if isinstance(child, Branch))
        for branch in reversed(order):
            units = self._units(branch.children)
            signatures = [self._signature(unit) for unit in units]
            self.alike[branch] = self._number(("branch", branch.detail, *signatures))
            branch.children = self._folded(units, signatures)

    def _units(self, children: Sequence[int | Branch]) -> list[list[int | Branch]]:
        """Children one by one, but leaves together with what follows: only the first of many uses has them."""
        units: list[list[int | Branch]] = []
        leaves: list[int | Branch] = []
        for child in children:
            leaves.append(child)
            if isinstance(child, Branch) or self.nodes[child].kind in {"operation", "custom"}:
                units.append(leaves)
                leaves = []
        return [*units, leaves] if leaves else units

    def _signature(self, unit: Sequence[int | Branch]) -> int:
        last = unit[-1]
        if isinstance(last, Branch):
            return self.alike[last]
        node = self.nodes[last]
        return self._number((node.operation, node.produces, node.receives))

    def _number(self, what: object) -> int:
        return self.numbers.setdefault(what, len(self.numbers))

    def _folded(self, units: list[list[int | Branch]], signatures: list[int]) -> list[int | Branch]:
        children: list[int | Branch] = []
        at = 0
        for start, length, times in _repetitions(np.array(signatures, dtype=np.int64)):
            if length == 1 and not isinstance(units[start][-1], Branch):
                continue  # the same small operation again and again is told by its line
            children += _flat(units[at:start])
            rounds = [units[start + turn * length : start + (turn + 1) * length] for turn in range(times)]
            children.append(self._repetition(rounds))
            at = start + length * times
        return children + _flat(units[at:])

    def _repetition(self, rounds: list[list[list[int | Branch]]]) -> Branch:
        parts: list[int | Branch] = []
        for turn, units in enumerate(rounds):
            inside = _flat(units)
            whole = units[0][-1] if len(units) == 1 else None
            if isinstance(whole, Branch) and len(inside) == 1:
                parts.append(whole)
            else:
                parts.append(Branch(f"s{next(self.keys)}", f"step {turn + 1}", "", inside))
        first, last = (self._named(inside) for inside in (rounds[0], rounds[-1]))
        times = len(rounds)
        if first and last:
            label, detail = f"{first.label} … {last.label}", f"{times} × {first.detail}"
        else:
            label, detail = f"{times} × {self._operations(rounds[0])}", ""
        return Branch(f"r{next(self.keys)}", label, detail, parts, times)

    @staticmethod
    def _named(units: list[list[int | Branch]]) -> Branch | None:
        """The only branch in a unit: what the repetition is a repetition of."""
        branches = [child for child in _flat(units) if isinstance(child, Branch)]
        return branches[0] if len(branches) == 1 else None

    def _operations(self, units: list[list[int | Branch]]) -> str:
        """The first operations of a unit, as a name for it."""
        last = [unit[-1] for unit in units]
        names = [part.label if isinstance(part, Branch) else self.nodes[part].operation for part in last]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flat(units: Sequence[Sequence[int | Branch]]) -> list[int | Branch]:
    return [child for unit in units for child in unit]


def _repetitions(signatures: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches in which a unit follows itself: start, length of the unit, how often; without overlap, longest first.

    For each length the run of ``signature[i] == signature[i + length]`` tells how far the repetition reaches, so the
    whole costs one comparison of the sequence with itself for each length.
    """
    size = len(signatures)
    covered = np.zeros(size, dtype=np.int64)
    unit = np.zeros(size, dtype=np.int64)
    for length in range(1, min(_LONGEST_UNIT, size // _FEWEST_TIMES) + 1):
        same = signatures[length:] == signatures[:-length]
        if np.count_nonzero(same) < (_FEWEST_TIMES - 1) * length:
            continue
        times = _runs(same) // length + 1
        reach = np.where(times >= _FEWEST_TIMES, times * length, 0)
        better = reach > covered[: len(reach)]
        covered[: len(reach)][better] = reach[better]
        unit[: len(reach)][better] = length
    found = []
    at = 0
    for start in np.flatnonzero(covered).tolist():
        if start >= at:
            found.append((start, int(unit[start]), int(covered[start] // unit[start])))
            at = start + int(covered[start])
    return found


def _runs(same: np.ndarray) -> np.ndarray:
    """For each place, how many of the values from there on are true without a break."""
    breaks = np.flatnonzero(~same)
    ends = np.append(breaks, len(same))
    return ends[np.searchsorted(breaks, np.arange(len(same)))] - np.arange(len(same))
