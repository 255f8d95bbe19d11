"""PB433: a view made under no_grad, changed where autograd records."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.sites import form_at
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ViewWithoutGrad(Cause):
    """A view was made inside `torch.no_grad()` (or inference mode) and changed in place outside of it.

    The change goes into the base, which is a part of a graph; the view was made where nothing is recorded. Whether the
    change is to be recorded cannot be told, so it is refused.

    Do both in the same mode: the view and the change inside the block if it is not to be recorded, both outside if
    it is.
    """

    code = "PB433"
    title = "A view that was made under no_grad or in inference mode was changed in place where autograd records."
    says = ("created in no_grad mode", "created in inference mode")

    def diagnose(self, case: Case) -> Diagnosis | None:
        form = form_at(case)
        if case.site is None or not case.says("view"):
            return None
        name = form.path if form is not None else say("the view")
        source = case.site.source
        marks = [case.mark(say("{name} is changed in place here, where autograd records", name=name))]
        edits: tuple[Edit, ...] = ()
        made = _made(case, name)
        if made is not None:
            marks.append(marked(source, made[0], say("{name} was made here, where nothing is recorded", name=name)))
            edits = _opened(case, *made)
        return self.found(
            say(
                "{name} is a view that was made where nothing is recorded, and its base is a part of a graph.",
                name=name,
            ),
            marks,
            Fix(
                say("Make the view where it is changed: both inside the block, or both outside."),
                source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        table = torch.randn(3, 3, requires_grad=True) * 1.0
        with torch.no_grad():
            first = table[:, 0]
        first.mul_(torch.randn(3, requires_grad=True))

    @staticmethod
    def good():
        import torch

        table = torch.randn(3, 3, requires_grad=True) * 1.0
        first = table[:, 0]
        first.mul_(torch.randn(3, requires_grad=True))


def _made(case: Case, name: str) -> tuple[ast.Assign, ast.With] | None:
    """The assignment that made a view inside a block, and the block."""
    if case.site is None:
        return None
    source = case.site.source
    for node in ast.walk(case.site.scope):
        if isinstance(node, ast.Assign) and any(path_of(target) == name for target in node.targets):
            block = source.parent(node)
            if isinstance(block, ast.With) and "torch." in source.text(block.items[0].context_expr):
                return node, block
    return None


def _opened(case: Case, made: ast.Assign, block: ast.With) -> tuple[Edit, ...]:
    """The edit that takes an assignment out of a block that has nothing else in it."""
    if case.site is None or len(block.body) != 1 or block.body[0].lineno == block.lineno or len(block.items) != 1:
        return ()
    source = case.site.source
    text = source.indent(block.lineno) + source.text(made)
    return (Edit(source.file, block.lineno, block.end_lineno or block.lineno, text),)
