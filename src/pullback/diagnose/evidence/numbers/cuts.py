"""Leaves that enter a formula only by a copy of their numbers, and the calls that made the copy."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import leaves_behind
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Mark, Subject

MOST = 200
LEAVES = 3


@dataclass
class Cut:
    """A call whose result has lost the graph.

    Attributes:
        call: The number of the call.
        spot: Where it was.
        leaves: The leaves behind it, weakly.
        subjects: What there is to say of them.
        value: The number that it returned, if it is one.
        used: Where its result entered a formula.
        partial: Whether a leaf also enters that formula directly.
        learns: Whether the result of that formula requires grad.
        reached: Whether a pass reached a leaf behind it by another way.
    """

    call: int
    spot: Spot
    leaves: list[ref[Tensor]]
    subjects: list[Subject]
    value: Any = None
    used: Spot | None = None
    partial: bool = False
    learns: bool = False
    reached: bool = False


class Cuts:
    """The cuts of one program, and the leaves that its passes reached."""

    def __init__(self) -> None:
        self.all: dict[int, Cut] = {}
        self.passes = 0
        self._reached: dict[int, ref[Tensor]] = {}

    def note(self, audit: Audit, call: Call, given: Value, value: Any = None) -> Cut | None:
        """Note a cut, if few leaves are behind it."""
        if call.spot is None or not call.grad or len(self.all) >= MOST:
            return None
        leaves = leaves_behind(given)
        if not 0 < len(leaves) <= LEAVES:
            return None
        alive = [(leaf.tensor, tensor) for leaf in leaves if (tensor := leaf.tensor()) is not None]
        if not alive:
            return None
        subjects = [audit.subject(tensor, "leaf", "a leaf") for _, tensor in alive]
        cut = self.all[call.number] = Cut(call.number, call.spot, [leaf for leaf, _ in alive], subjects, value)
        cut.reached = any(self._is_reached(leaf) for leaf in cut.leaves)
        return cut

    def reach(self, backward: Backward) -> None:
        """Note the leaves of a pass."""
        self.passes += 1
        for leaf in backward.leaves:
            self._reached[id(leaf)] = ref(leaf)
        for cut in self.all.values():
            cut.reached = cut.reached or any(self._is_reached(leaf) for leaf in cut.leaves)

    def unreached(self, cut: Cut) -> bool:
        """Whether no pass reached a leaf behind a cut."""
        return not cut.reached

    def _is_reached(self, leaf: ref[Tensor]) -> bool:
        tensor = leaf()
        known = None if tensor is None else self._reached.get(id(tensor))
        return known is not None and known() is tensor


def enters(cut: Spot, formula: Spot) -> bool:
    """Whether the number made at the one point is written into the expression at the other."""
    if cut.code is not formula.code:
        return False
    made, whole = cut.node, formula.node
    if made is None or whole is None:
        return False
    if any(each is made for each in ast.walk(whole)):
        return True
    statement = cut.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = ast.unparse(statement.targets[0])
    return any(isinstance(each, ast.Name | ast.Attribute) and ast.unparse(each) == target for each in ast.walk(whole))


def marks_of_cut(cut: Cut, cut_here: str, used_here: str) -> list[Mark]:
    """Its lines."""
    marks = [cut.spot.mark(cut_here)]
    if cut.used is not None:
        marks.append(cut.used.mark(used_here))
    return marks
