"""PBA519: a write through .data to a tensor that the backward needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.functions.edits import as_new
from pullback.diagnose.evidence.numbers.find import inside_functorch, mark_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Fix
from pullback.graph.saved import kept_by, pieces
from pullback.language import say

MOST = 5_000


class DataWrite(Fault):
    """A tensor that the backward needs was changed through ``.data``, which switches off the check of torch.

    torch counts the in-place operations on a tensor and raises "modified by an inplace operation" if a backward needs
    what was there before. What is done to ``x.data`` is not counted: the backward computes with the new values, and the
    gradient is that of no function.

    Compute a new tensor (``h = h.clamp(0, 1)``): the change is then differentiated too. A parameter is changed under
    ``torch.no_grad()``, after the backward pass or before the forward pass. ``detach()`` in the place of ``.data``
    makes torch see the change, and raise.
    """

    code = "PBA519"
    title = "A tensor that the backward needs was changed through .data, unseen by torch."
    hears = frozenset({"get data"})

    def __init__(self) -> None:
        self._owners: dict[int, tuple[bool, list[int]]] = {}  # of what .data gave: whether of a leaf, and its memory
        self._found: dict[tuple[str, int], Diagnosis] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.outputs and call.inputs and isinstance(args[0], Tensor) and audit.level != "strict":
            if len(self._owners) >= MOST:
                self._owners.clear()
            owner = (call.inputs[0].leaf, [key for key, _, _ in pieces(args[0])])
            self._owners[call.outputs[0].number] = owner

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._found = {}
        if not self._owners or inside_functorch() or len(backward.nodes) > MOST:
            return
        numbers = [number for node in backward.nodes if 0 <= (number := node._sequence_nr()) < 2**63]
        writes: dict[int, list[tuple[Call, bool]]] = {}
        for call, leaf, keys in self._writes(audit, min(numbers, default=0)):
            for key in keys:
                writes.setdefault(key, []).append((call, leaf))
        for node in backward.nodes if writes else ():
            number = node._sequence_nr()
            for key in {key for _, tensor in kept_by(node).tensors for key, _, _ in pieces(tensor)}:
                for call, leaf in writes.get(key, ()):
                    if 0 <= number < call.sequence and call.spot is not None:
                        finding = self._finding(audit, node, call.spot, backward.spot, leaf=leaf)
                        self._found.setdefault((call.spot.file, call.spot.line), finding)

    def _writes(self, audit: Audit, oldest: int) -> Iterator[tuple[Call, bool, list[int]]]:
        """The writes through ``.data`` since the oldest node of a pass, the latest first."""
        for call in reversed(audit.tape.calls):
            if call.sequence < oldest:
                break
            for value in call.inputs if call.writes and not call.name.startswith("set ") else ():
                if (owner := self._owners.get(value.number)) is not None:
                    yield call, *owner

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        for finding in self._found.values():
            audit.report(finding)

    def _finding(self, audit: Audit, node: Node, spot: Spot, asked: Spot | None, *, leaf: bool) -> Diagnosis:
        name = _changed(spot)
        marks = [spot.mark(say("changed here, and not counted"))]
        marks += mark_of(audit, node, say("{operation} kept it for its backward here", operation=node.name()))
        if asked is not None:
            marks.append(asked.mark(say("the backward uses the new values here")))
        if leaf:
            fix = Fix(say("Change {name} after the backward pass, or before the forward pass.", name=name), "")
        else:
            fix = Fix(say("Make a new tensor instead of changing {name}.", name=name), _new(spot, name))
        return self.found(
            say(
                "{name} was written to after {operation} had kept it. Through .data torch does not see that: this "
                "backward pass computes with the new values.",
                name=name,
                operation=node.name(),
            ),
            marks,
            fix,
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 4)
        head = torch.nn.Linear(4, 1)
        for _ in range(3):
            gate = torch.sigmoid(net(torch.randn(8, 4)))
            gate.data.clamp_(0.4, 0.6)
            head(gate).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 4)
        head = torch.nn.Linear(4, 1)
        for _ in range(3):
            gate = torch.sigmoid(net(torch.randn(8, 4))).clamp(0.4, 0.6)
            head(gate).sum().backward()
            for parameter in net.parameters():
                parameter.data.clamp_(-1, 1)


def _changed(spot: Spot) -> str:
    """What the line changes, without ``.data``."""
    for each in ast.walk(spot.statement) if spot.statement is not None else ():
        if isinstance(each, ast.Attribute) and each.attr == "data":
            return spot.source.text(each.value)
    return say("a tensor")


def _new(spot: Spot, name: str) -> str:
    """The line with a new tensor, or with a copy of its own."""
    if code := as_new(spot.source, spot.node):
        return code
    statement = spot.source.text(spot.statement).replace(f"{name}.data", name) if spot.statement is not None else ""
    return f"{name} = {name}.clone()\n{statement}".strip()
