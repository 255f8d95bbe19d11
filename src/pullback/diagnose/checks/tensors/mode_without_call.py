"""PB519: a grad mode without its parentheses."""

from __future__ import annotations

import ast
from typing import Any

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ModeWithoutCall(Cause):
    """``torch.no_grad`` is a class; a ``with`` block needs an object of it: ``with torch.no_grad():``.

    The same goes for ``torch.enable_grad()`` and ``torch.inference_mode()``. ``torch.set_grad_enabled(False)`` and
    ``torch.autocast("cuda")`` take an argument.
    """

    code = "PB519"
    title = "A grad mode was used in a with block without its parentheses."
    says = ("does not support the context manager protocol", "__enter__")
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        statement = site.statement if site is not None else None
        if site is None or not isinstance(statement, ast.With | ast.AsyncWith):
            return None
        for item in statement.items:
            kind: Any = site.evaluated(item.context_expr)
            if not isinstance(kind, type) or not str(kind.__module__).startswith("torch."):
                continue
            name = case.text(item.context_expr)
            given = {"set_grad_enabled": "(False)", "autocast": '("cuda")'}.get(kind.__name__, "()")
            edits: tuple[Edit, ...] = (site.source.replaced(item.context_expr, f"{name}{given}"),)
            return self.found(
                say("{name} is a class: it has to be called to make the object that the block needs.", name=name),
                [case.mark(say("the parentheses are missing here"))],
                Fix(say("Call it."), site.source.code(*edits), edits, "high" if given == "()" else "medium"),
            )
        return None

    @staticmethod
    def bad():
        import torch

        w = torch.ones(2, requires_grad=True)
        with torch.enable_grad:
            w.sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.ones(2, requires_grad=True)
        with torch.enable_grad():
            w.sum().backward()
