"""PB215: values were written into an integer tensor."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.slices import steps_of
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class IntegerBuffer(RootWithoutGraph):
    """Values with a graph were written into a tensor of integers, which cuts off their decimals and their graph.

    ``buffer[i] = x`` converts to the type of the buffer without a word. A tensor of integers can neither hold
    the value nor require grad, so the graph of what was written is lost. Such buffers come about unnoticed:
    ``torch.tensor([0, 0, 0])``, ``torch.arange(n)``, ``dtype=torch.long``.

    Make the buffer of a floating-point type (``torch.zeros(n)``), or collect the values in a list and
    ``torch.stack`` it. Casting the buffer with ``.float()`` afterwards is too late.
    """

    code = "PB215"
    title = "Values with a graph were written into a tensor of integers."
    kinds = ("int_buffer",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        statement = cut.statement
        return say(
            "{text} (line {line}) writes into a tensor of integers: the value is cut to a whole number and its "
            "graph is "
            "lost, so {root} has none.",
            text=" ".join(cut.source.text(statement).split()) if statement is not None else cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("written into integers here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Make the buffer of a floating-point type.")
        edits = self._edits(case, cut)
        return fix_of(cut, text, edits, "high" if edits else "medium", "" if edits else "torch.zeros(n)    # float32")

    @staticmethod
    def _edits(case: Case, cut: Cut) -> tuple[Edit, ...]:
        """The type of the buffer, where it is given where the buffer is made."""
        found = found_in(case)
        written = _buffer(cut.statement)
        if found.root is None or written is None:
            return ()
        for step in steps_of(found.root):
            if not isinstance(step.node, ast.Call) or step.part.statement is None:
                continue
            targets = step.part.statement.targets if isinstance(step.part.statement, ast.Assign) else []
            for keyword in step.node.keywords:
                if keyword.arg == "dtype" and any(ast.unparse(each) == written for each in targets):
                    return (step.source.replaced(keyword.value, "torch.float32"),)
        return ()

    @staticmethod
    def bad():
        import torch

        w = torch.randn(4, requires_grad=True)
        scores = torch.zeros(2, dtype=torch.int64)
        for i in range(2):
            scores[i] = (w * i).sum()
        (scores * 0.5).sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(4, requires_grad=True)
        scores = torch.zeros(2)
        for i in range(2):
            scores[i] = (w * i).sum()
        (scores * 0.5).sum().backward()


def _buffer(statement: ast.stmt | None) -> str | None:
    """What a statement writes into, as it is written."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return ast.unparse(statement.targets[0].value)
    if isinstance(statement, ast.AugAssign):
        target = statement.target
        return ast.unparse(target.value if isinstance(target, ast.Subscript) else target)
    return None
