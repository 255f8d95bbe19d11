"""PB434: detach_() on a view."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ViewDetached(Cause):
    """`h.detach_()` was called on a view (`x[:2]`, a slice, a gradient of DDP's buckets).

    A view's history is that of its base; it cannot be cut for the view alone.

    Write `h = h.detach()`. With `DistributedDataParallel(gradient_as_bucket_view=True)` the gradients are views: use
    `optimizer.zero_grad(set_to_none=True)`.
    """

    code = "PB434"
    title = "detach_() was called on a view, which cannot be detached in place."
    says = ("can't detach views in-place",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        node = case.site.node
        edits: tuple[Edit, ...] = ()
        path = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach_":
            path = path_of(node.func.value)
            statement = case.site.source.statement(node)
            if path and isinstance(statement, ast.Expr) and statement.value is node:
                edits = (case.site.source.replaced(node, f"{path} = {path}.detach()"),)
            else:
                edits = (case.site.source.replaced(node, f"{case.text(node.func.value)}.detach()"),)
        return self.found(
            say(
                "{name} is a view of another tensor: its history cannot be taken away in place.",
                name=path or say("The tensor"),
            ),
            [case.mark(say("detached in place here"))],
            Fix(
                say("Detach into a new tensor."),
                "\n".join((edit.text or "").strip() for edit in edits) or "h = h.detach()",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(4, requires_grad=True)
        part = w.exp().view(2, 2)
        part.detach_()

    @staticmethod
    def good():
        import torch

        w = torch.randn(4, requires_grad=True)
        part = w.exp().view(2, 2)
        part = part.detach()
