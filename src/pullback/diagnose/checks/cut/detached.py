"""PB205: a tensor was detached on the only way to the root."""

from __future__ import annotations

import ast
from dataclasses import replace

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, detached_later, fix_of, left_out
from pullback.diagnose.evidence.cuts.found import Cut, Found, marked
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
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

    def confidence(self, found: Found, mine: list[Cut]) -> Confidence:
        """Likelier than a gradient without a graph from which the detached value is computed."""
        likelier = any(each.kind == "create_graph" and detached_later(found, each) for each in found.cuts)
        return "medium" if likelier and not mine[0].exact else super().confidence(found, mine)

    def diagnose(self, case: Case) -> Diagnosis | None:
        """The first values of what is detached in each turn of a loop may be detached too."""
        diagnosis = super().diagnose(case)
        cut = next((each for each in found_in(case).cuts if each.kind in self.kinds), None)
        before = _before(cut) if cut is not None else []
        if diagnosis is None or cut is None or not before:
            return diagnosis
        edits = diagnosis.fix.edits
        edits += tuple(edit for call, of in before for edit in left_out(cut.source, call, of))
        fix = replace(diagnosis.fix, code=cut.source.code(*edits), edits=edits, confidence="medium")
        marks = [marked(cut.source, call, say("detached here too")) for call, _ in before]
        return replace(diagnosis, marks=(*diagnosis.marks, *marks), fix=fix)

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
        edits = tuple(edit for each in known[:1] for edit in _left_out(each))
        others = [each for each in known[1:] if each.statement is not known[0].statement] if known else []
        edits += tuple(edit for each in others for edit in _left_out(each))
        gone = bool(edits) and edits[0].text is None
        text = say("Leave this line out.") if gone else say("Leave out detach() on the way to the loss.")
        return fix_of(cut, text, edits, "high" if edits else "medium")

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


def _left_out(cut: Cut) -> tuple[Edit, ...]:
    """The edit without the call of ``detach``."""
    return left_out(cut.source, cut.node, cut.operand) if cut.operand is not None else ()


def _before(cut: Cut) -> list[tuple[ast.expr, ast.expr]]:
    """The calls of ``detach`` in the assignments, before the loop, to the name that the cut is assigned to in it."""
    statement = cut.statement
    looped = any(isinstance(each, ast.For | ast.While) for each in cut.source.around(cut.node))
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name) or not looped:
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    for each in ast.walk(cut.body.scope):
        if not isinstance(each, ast.Assign) or each.lineno >= statement.lineno:
            continue
        if cut.source.text(each.targets[0]) == statement.targets[0].id:
            found += [(call, call.func.value) for call in ast.walk(each.value) if isinstance(call, ast.Call)
                      and isinstance(call.func, ast.Attribute) and call.func.attr == "detach"]  # fmt: skip
    return found
