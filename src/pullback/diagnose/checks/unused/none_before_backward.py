"""PB609: .grad before the first backward."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.values import last_pass, none_gradient
from pullback.diagnose.evidence.definitions import called, made
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoneBeforeBackward(Cause):
    """``.grad`` is None until a backward pass has put a gradient there.

    It is not zero: ``w.grad.zero_()`` at the start of a training loop fails in the first turn, and so does every look
    at ``w.grad`` before ``loss.backward()``.

    Write ``w.grad = None`` (which is always allowed, and costs less than filling with zeros),
    ``optimizer.zero_grad()``, or ask: ``if w.grad is not None: ...``.
    """

    code = "PB609"
    title = "A gradient was used before any backward pass had made it."
    says = ("nonetype",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        if found is None or found.tensor is None or case.site is None or last_pass(case) is not None:
            return None
        if not found.tensor.is_leaf or not found.tensor.requires_grad:
            return None
        source, statement = case.site.source, case.site.statement
        name = source.text(found.owner) if found.owner is not None else "w"
        grad = source.text(found.written)
        edits = ()
        code = f"if {grad} is not None:\n    ..."
        if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign) and case.site.node is not None:
            node = statement.value
            if isinstance(statement, ast.Expr) and called(node) in ("zero_", "fill_") and found.taken is None:
                edits = (source.replaced(statement, f"{name}.grad = None"),)  # type: ignore[assignment]
            elif isinstance(statement, ast.Expr | ast.AugAssign):
                edits = (source.wrapped(statement, f"if {grad} is not None:"),)  # type: ignore[assignment]
            code = source.code(*edits) or code
        marks = [case.mark(say("{name} is None here", name=grad))]
        marks += made(
            case, found.tensor, found.owner, say("{name} was made here; it has had no backward since", name=name)
        )
        known = bool(case.passes) or not case.frames or edits
        return self.found(
            say(
                "{name} has no gradient: .grad is None until the first backward pass, and none has run yet.", name=name
            ),
            marks,
            Fix(
                say("Use the gradient only after backward(); to clear it set it to None."),
                code, edits, "high" if edits else "medium",
            ),
            tensors=[case.subject(found.tensor, "leaf", name)],
            confidence="high" if known or case.traced else "medium",
            apart="" if known else say("Whether a backward pass had run before."),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        for _ in range(2):
            for p in net.parameters():
                p.grad.zero_()
            net(torch.randn(4, 3)).square().mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        for _ in range(2):
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.zero_()
            net(torch.randn(4, 3)).square().mean().backward()
