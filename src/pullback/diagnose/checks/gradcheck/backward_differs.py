"""PB847: two runs of a backward give different values."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, method_of
from pullback.diagnose.evidence.verdicts import random_calls
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class BackwardDiffers(Cause):
    """gradcheck ran one backward twice, with the same seed, and got two different results.

    Its backward draws random numbers (a mask made anew rather than the one of the forward), changes what it saved, or
    keeps a state of its own. Or it adds up in an order that is not fixed, as ``index_add`` and ``scatter`` do on a GPU:
    then the differences are of the size of rounding.

    Save what is random in forward (``ctx.save_for_backward(mask)``) and use it in backward. Never write to a saved
    tensor. For rounding only, ``gradcheck(..., nondet_tol=1e-10)``; a ``nondet_tol`` that hides a random mask is no
    cure.
    """

    code = "PB847"
    title = "A backward gave two different results for the same seed."
    says = ("Backward is not reentrant", "not reentrant, i.e.")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None:
            return None
        marks = [case.mark(say("gradcheck is called here"))]
        found: list[Mark] = []
        for kind in comparison.functions[:2]:
            if (method := method_of(kind, "backward")) is not None:
                calls = random_calls(method)
                found += [method.mark(each, say("random numbers are drawn here, in the backward")) for each in calls]
                if not calls:
                    found += method.marks(say("{name}: this gradient differs from run to run", name=kind.__name__))
        names = ", ".join(kind.__name__ for kind in comparison.functions) or say("an operation of the function")
        return self.found(
            say("The backward of {names} was run twice with the same seed, and the results differ.", names=names),
            [*marks, *found],
            Fix(say("Save what is random in forward and use it in backward; do not write to what was saved.")),
            confidence="high" if found else "medium",
            useless=[say("nondet_tol: it hides the difference.")],
        )

    @staticmethod
    def bad():
        import torch

        class Masked(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2 + torch.randn_like(grad) * 1e-8

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(Masked.apply, x)

    @staticmethod
    def good():
        import torch

        class Masked(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(Masked.apply, x)
