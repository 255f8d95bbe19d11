"""PB608: two flags that contradict each other."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class Materialized(Cause):
    """``materialize_grads=True`` asks for zeros for unused inputs, ``allow_unused=False`` forbids such inputs.

    Leave ``allow_unused`` out: ``materialize_grads=True`` allows unused inputs by itself. To be told of unused inputs
    leave ``materialize_grads`` out.
    """

    code = "PB608"
    title = "materialize_grads=True and allow_unused=False contradict each other."
    says = ("expected allow_unused to be true or not passed",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        call = case.call
        if call is None or case.site is None:
            return None
        source = case.site.source
        given = [source.text(each) for each in [*call.args, *call.keywords]
                 if getattr(each, "arg", None) != "allow_unused"]  # fmt: skip
        edits = ()
        if len(given) == len(call.args) + len(call.keywords) - 1:
            text = f"{source.text(call.func)}({', '.join(given)})"
            edits = (source.replaced(call, text),)  # type: ignore[assignment]
        return self.found(
            say("Zeros for unused inputs are asked for, and unused inputs are forbidden."),
            [case.mark(say("both flags are given here"))],
            Fix(say("Leave allow_unused out."), source.code(*edits), edits, "high" if edits else "medium"),
        )

    @staticmethod
    def bad():
        import torch

        a = torch.randn(3, requires_grad=True)
        y = a.exp().sum()
        torch.autograd.grad(y, [a], materialize_grads=True, allow_unused=False)

    @staticmethod
    def good():
        import torch

        a = torch.randn(3, requires_grad=True)
        y = a.exp().sum()
        torch.autograd.grad(y, [a], materialize_grads=True)
