"""PB435: out= with a tensor that requires grad."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class OutArgument(Cause):
    """A function of torch was called with `out=`, and one of its arguments requires grad.

    `out=` writes the result into a tensor that exists already; autograd has no node for that.

    Take the result instead: `out = torch.mul(a, 2)`. If nothing is to be differentiated there, call it under
    `torch.no_grad()` or on detached tensors.
    """

    code = "PB435"
    title = "A function was called with out=, which autograd cannot record, on a tensor that requires grad."
    says = ("functions with out=... arguments don't support automatic differentiation",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        call = case.call
        if case.site is None or call is None:
            return None
        keyword = next((each for each in call.keywords if each.arg == "out"), None)
        edits: tuple[Edit, ...] = ()
        target = ""
        if keyword is not None:
            target = case.text(keyword.value)
            parts = [case.text(each) for each in call.args]
            parts += [
                f"{each.arg}={case.text(each.value)}" if each.arg else f"**{case.text(each.value)}"
                for each in call.keywords
                if each is not keyword
            ]
            text = f"{case.text(call.func)}({', '.join(parts)})"
            statement = case.site.source.statement(call)
            if isinstance(statement, ast.Expr) and statement.value is call and path_of(keyword.value):
                edits = (case.site.source.replaced(call, f"{target} = {text}"),)
            elif isinstance(statement, ast.Assign | ast.Return):
                edits = (case.site.source.replaced(call, text),)
        return self.found(
            say("The result is written into {name}, and autograd cannot record that.", name=target or "out"),
            [case.mark(say("out= is given here"))],
            Fix(
                say("Take the result instead of having it written."),
                "\n".join((edit.text or "").strip() for edit in edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(2, 2, requires_grad=True)
        room = torch.empty(2, 2)
        torch.matmul(w, w, out=room)
        room.sum()

    @staticmethod
    def good():
        import torch

        w = torch.randn(2, 2, requires_grad=True)
        room = torch.matmul(w, w)
        room.sum().backward()
