"""PB205: a tensor was detached on the only way to the root."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, replaced, wrapped_operand
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class Detached(RootWithoutGraph):
    """A tensor was detached on the only way from the parameters to the root.

    ``x.detach()`` gives a tensor with the same values and without history. If all that the root is computed
    from goes through it, the root has no graph. It belongs where a value is to be constant: targets, logging,
    the state carried from one part of a long sequence to the next.

    Leave it out on the way to the loss, and detach the copy that is logged: ``log(loss.detach())``. A later
    ``requires_grad_()`` does not bring the history back: it makes a new leaf.
    """

    code = "PB205"
    title = "A detached tensor is on the only way to the root, so the root has no graph."
    kinds = ("detach",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) gives a tensor without history, though {operand} has one; all of {root} comes "
            "through it.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("detached here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        known = [each for each in cuts if each.operand is not None and each.name != "detach_"]
        edits = tuple(edit for each in known[:1] for edit in replaced(each, wrapped_operand(each)))
        others = [each for each in known[1:] if each.statement is not known[0].statement] if known else []
        edits += tuple(edit for each in others for edit in replaced(each, wrapped_operand(each)))
        return fix_of(cut, say("Leave out detach() on the way to the loss."), edits, "high" if edits else "medium")

    @staticmethod
    def bad():
        import torch

        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)

            def forward(self, x):
                code = self.layer(x)
                return code.detach()

        encoder = Encoder()
        loss = (encoder(torch.randn(3, 4)) - 1).abs().mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)

            def forward(self, x):
                code = self.layer(x)
                return code

        encoder = Encoder()
        loss = (encoder(torch.randn(3, 4)) - 1).abs().mean()
        loss.backward()
