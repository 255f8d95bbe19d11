"""PB216: a parameter was replaced by a new tensor under no_grad."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class ReboundParameter(RootWithoutGraph):
    """A parameter was replaced by a new tensor that was computed without being recorded.

    ``w = w - lr * w.grad`` under ``torch.no_grad()`` does not change the parameter: it makes a new tensor,
    which does not require grad, and gives it the old name. The first step works, and the next backward finds no
    parameter.

    Change it in place, ``w -= lr * w.grad``, which keeps the tensor and that it requires grad, and clear its
    gradient afterwards (``w.grad = None``); or use an optimizer of ``torch.optim``. Without ``no_grad`` the
    rebinding would give a tensor that is no leaf, and its ``.grad`` would stay None.
    """

    code = "PB216"
    title = "A parameter was replaced by a new tensor that was computed under no_grad."
    kinds = ("rebinding",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        name = _target(cut)
        return say(
            "Line {line} makes a new tensor under no_grad and calls it {name}: it does not require grad, and the next "
            "{root} that is computed from it has no graph.",
            line=cut.node.lineno,
            name=name,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("{name} is a new tensor from here on", name=_target(cut))

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        edits = tuple(edit for each in cuts for edit in self._edits(each))
        return fix_of(
            cut, say("Change the parameter in place, and clear its gradient."), edits, "high" if edits else "medium"
        )

    @staticmethod
    def _edits(cut: Cut) -> tuple[Edit, ...]:
        statement, name = cut.statement, _target(cut)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or value is None:
            return ()
        signs = {ast.Sub: "-", ast.Add: "+", ast.Mult: "*", ast.Div: "/"}
        sign = signs.get(type(value.op)) if isinstance(value, ast.BinOp) else None
        if sign is not None and isinstance(value, ast.BinOp) and cut.source.text(value.left) == name:
            new = f"{name} {sign}= {cut.source.text(value.right)}"
        else:
            new = f"{name}.copy_({cut.source.text(value)})"
        text = "\n".join(cut.source.lines)
        cleared = any(
            each in text for each in (f"{name}.grad = None", f"{name}.grad.zero_", f"{name}.grad.fill_", "zero_grad")
        )
        if not cleared and f"{name}.grad" in cut.source.text(value):
            new += f"\n{cut.source.indent(statement.lineno)}{name}.grad = None"
        return (cut.source.replaced(statement, new),)

    @staticmethod
    def bad():
        import torch

        a = torch.randn(3, requires_grad=True)
        x = torch.randn(5, 3)
        for step in range(3):
            loss = (x @ a - 1).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                a = a - 0.01 * a.grad

    @staticmethod
    def good():
        import torch

        a = torch.randn(3, requires_grad=True)
        x = torch.randn(5, 3)
        for step in range(3):
            loss = (x @ a - 1).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                a -= 0.01 * a.grad
            a.grad = None


def _target(cut: Cut) -> str:
    """The name that gets the new tensor."""
    statement = cut.statement
    return cut.source.text(statement.targets[0]) if isinstance(statement, ast.Assign) else "w"
