"""PB631: a closure that does not return the loss."""

from __future__ import annotations

import ast
import inspect

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import method_behind
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ClosureWithoutLoss(Cause):
    """The closure that an optimizer was given computes the loss but does not return it.

    An optimizer such as ``torch.optim.LBFGS`` calls the closure, takes the number that it returns, and decides
    by it. A closure without ``return`` gives None. Clear the gradients, compute the loss, call ``backward()``
    and end with ``return loss``: the tensor, with or without its graph. ``return loss.backward()`` is None as
    well.
    """

    code = "PB631"
    title = "A closure given to an optimizer did not return the loss."
    says = ("not 'NoneType'",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("optim/lbfgs.py", "step")
        closure = inspect.unwrap(local["closure"]) if local is not None and callable(local.get("closure")) else None
        method = method_behind(getattr(closure, "__wrapped__", closure))
        if local is None or ("orig_loss" in local and local["orig_loss"] is not None):
            return None
        marks = [case.mark(say("the optimizer calls its closure here"))]
        edits: tuple[Edit, ...] = ()
        loss = "loss"
        if method is not None and method.body:
            marks.append(method.mark(method.body[-1], say("the closure ends here, and returns nothing")))
            calls = [each for each in method.calls("backward") if isinstance(each.func, ast.Attribute)]
            owner = calls[-1].func.value if calls and isinstance(calls[-1].func, ast.Attribute) else None
            loss = method.text(owner) if isinstance(owner, ast.Name) else "loss"
            last = method.body[-1]
            if method.own and isinstance(owner, ast.Name) and not isinstance(last, ast.Return):
                edits = method.rewrite().after(last, f"return {loss}").edits()
        return self.found(
            say("The closure returns None; the optimizer needs the loss that it computes."),
            marks,
            Fix(say("Return the loss from the closure."), f"return {loss}", edits, "high" if edits else "medium"),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([w])

        def closure():
            optimizer.zero_grad()
            loss = (w - 1).pow(2).sum()
            loss.backward()

        optimizer.step(closure)

    @staticmethod
    def good():
        import torch

        w = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([w])

        def closure():
            optimizer.zero_grad()
            loss = (w - 1).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
