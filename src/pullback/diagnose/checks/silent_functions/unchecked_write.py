"""PBA506: a write to a saved tensor that saved-tensor hooks hide."""

from __future__ import annotations

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.functions.edits import as_new
from pullback.diagnose.evidence.numbers.find import inside_functorch, mark_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.saved import kept_by, pieces
from pullback.language import say

MOST = 5_000


class UncheckedWrite(Fault):
    """A tensor that the backward needs was changed in place, and saved-tensor hooks had switched off the check for it.

    torch compares the version of a saved tensor with that at the time it was saved, and raises. Under
    ``saved_tensors_hooks`` (also ``save_on_cpu`` for tensors that are on the CPU already) it keeps what the hook
    returned and compares nothing: the backward computes with the new values.

    Do not change the tensor in place (``h = h * 5``), or let the hook copy: ``pack = lambda t: t.clone()``.
    """

    code = "PBA506"
    title = "A saved tensor was changed in place, and saved-tensor hooks had switched off the check."

    def __init__(self) -> None:
        self._found: list[tuple[list[Mark], str, str]] = []
        self._looked = -1

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._found = []
        if inside_functorch() or backward.inputs or not audit.affordable or len(backward.nodes) > MOST:
            return
        writes = self._writes(audit, backward)
        if not writes:
            return
        for node in backward.nodes:
            number = node._sequence_nr()
            if issubclass(type(node), BackwardCFunction) or not 0 <= number < 2**63:
                continue
            for _, tensor in kept_by(node).tensors:
                for key, _, _ in pieces(tensor):
                    for call, version in writes.get(key, ()):
                        if number < call.sequence and tensor._version >= version and call.spot is not None:
                            self._note(audit, node, call.spot, backward.spot)

    @staticmethod
    def _writes(audit: Audit, backward: Backward) -> dict[int, list[tuple[Call, int]]]:
        """The writes since the oldest node of the pass, by the memory that was written."""
        numbers = [number for node in backward.nodes if 0 <= (number := node._sequence_nr()) < 2**63]
        oldest = min(numbers, default=0)
        writes: dict[int, list[tuple[Call, int]]] = {}
        for call in reversed(audit.tape.calls):
            if call.sequence < oldest:
                break
            for value, _, after in call.writes:
                tensor = value.tensor()
                if tensor is not None and not call.name.startswith("set "):
                    for key, _, _ in pieces(tensor):
                        writes.setdefault(key, []).append((call, after))
        return writes

    def _note(self, audit: Audit, node: Node, spot: Spot, asked: Spot | None) -> None:
        marks = mark_of(audit, node, say("saved here for the backward"))
        marks.append(spot.mark(say("changed in place here")))
        if asked is not None:
            marks.append(asked.mark(say("the backward uses the new values here")))
        ordered = marks[1:2] + marks[:1] + marks[2:] if len(marks) > 2 else marks
        self._found.append((ordered, node.name(), as_new(spot.source, spot.node) or "pack = lambda t: t.clone()"))

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        # torch's own check would have raised: that it did not is what the hooks did
        for found in self._found:
            audit.report(self._finding(*found))
        self._found = []

    def _finding(self, marks: list[Mark], name: str, code: str) -> Diagnosis:
        return self.found(
            say(
                "{node} keeps a tensor for its backward that was changed in place afterwards. Without hooks torch "
                "raises \"modified by an inplace operation\"; what is kept under saved_tensors_hooks it does not "
                "check, and the backward computes with the new values.",
                node=name,
            ),
            marks,
            Fix(
                say("Make a new tensor instead of the in-place change, or let the pack hook copy."),
                code,
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.randn(3, requires_grad=True)
        h = x + 1
        with torch.autograd.graph.save_on_cpu():
            y = h.sin() * h
        h.add_(1.0)
        y.sum().backward()

    @staticmethod
    def good():
        import torch

        x = torch.randn(3, requires_grad=True)
        h = x + 1
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
            y = h.sin() * h
        h.add_(1.0)
        y.sum().backward()
