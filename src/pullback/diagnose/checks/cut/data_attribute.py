"""PB206: the .data of a tensor is on the only way to the root."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, replaced, wrapped_operand
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class DataAttribute(RootWithoutGraph):
    """The ``.data`` of a tensor is on the only way from the parameters to the root.

    ``x.data`` is the same memory without history: what is computed from it has no graph. It is a relic of torch
    before 0.4 (``Variable``), and it hides writes from autograd as well. Leave it out where a gradient is
    wanted; where none is wanted write ``x.detach()``, or a block under ``torch.no_grad()`` for an update.
    """

    code = "PB206"
    title = "The .data of a tensor is on the only way to the root, so the root has no graph."
    kinds = ("data",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) is the memory of {operand} without its history; all of {root} comes through it.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("the history is left behind here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        edits = replaced(cut, wrapped_operand(cut))
        return fix_of(cut, say("Leave out .data on the way to the loss."), edits, "high")

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = (w * 2).data + 1
        y.sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = (w * 2) + 1
        y.sum().backward()
