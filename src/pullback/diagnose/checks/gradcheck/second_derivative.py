"""PB849: gradgradcheck of a backward that cannot be differentiated."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, entries, method_of, once_differentiable
from pullback.diagnose.evidence.transforms import Defined
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say

CUTTING = frozenset({"detach", "data", "item", "numpy", "no_grad", "tolist"})


class SecondDerivative(Cause):
    """gradgradcheck found that the backward of a Function has wrong derivatives, mostly because its own graph is cut.

    For second derivatives torch differentiates the code of ``backward``. It has to consist of differentiable operations
    on ``grad_output`` and on ``ctx.saved_tensors``. What is kept as ``ctx.x = x`` or ``ctx.x = x.detach()``, computed
    by numpy, under ``no_grad`` or by ``.data`` has no history there: its part of the second derivative is zero.

    Save inputs and outputs with ``ctx.save_for_backward``, and write ``backward`` with torch's operations; save an
    intermediate value only if it is an output, or compute it again in ``backward``. ``once_differentiable`` says that
    there is no second derivative: then there is nothing to check with gradgradcheck.
    """

    code = "PB849"
    title = "gradgradcheck found wrong second derivatives: the backward is not differentiable as it should be."
    says = (
        "Jacobian mismatch",
        "Numerical gradient for function expected to be zero",
        "Jacobian computed with forward mode",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or not comparison.second:
            return None
        marks = [case.mark(say("gradgradcheck is called here"))]
        cut: list[Mark] = []
        once = [kind for kind in comparison.functions if once_differentiable(kind)]
        for kind in comparison.functions[:2]:
            forward, backward = method_of(kind, "forward"), method_of(kind, "backward")
            cut += _attributes(forward) + _cuts(backward)
            if kind in once or not cut:
                cut += backward.marks(say("{name}: this is differentiated", name=kind.__name__)) if backward else []
        names = ", ".join(kind.__name__ for kind in comparison.functions) or say("the function")
        text = say("Save tensors with ctx.save_for_backward, and compute backward with torch's operations on them.")
        if once:
            text = say("Take @once_differentiable off and write a differentiable backward; or leave gradgradcheck out.")
        told = entries(comparison)
        return self.found(
            say("The second derivatives of {names} are wrong: the graph of its backward is cut.{entries}",
                names=names, entries=f" {told}" if told else ""),
            [*marks, *cut],
            Fix(text),
            confidence="high" if cut else "medium",
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Power(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.kept = x.detach()
                return x**4

            @staticmethod
            def backward(ctx, grad):
                return grad * 4 * ctx.kept**3

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradgradcheck(Power.apply, x)

    @staticmethod
    def good():
        import torch

        class Power(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**4

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 4 * x**3

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradgradcheck(Power.apply, x)


def _attributes(where: Defined | None) -> list[Mark]:
    """Where forward keeps something as an attribute of ``ctx``."""
    if where is None or not where.parameters:
        return []
    context = where.parameters[0]
    return [
        where.mark(each, say("kept without save_for_backward: it has no history in backward"))
        for each in ast.walk(where.scope)
        if isinstance(each, ast.Assign)
        and any(isinstance(t, ast.Attribute) and getattr(t.value, "id", "") == context for t in each.targets)
    ]


def _cuts(where: Defined | None) -> list[Mark]:
    return [
        where.mark(each, say("this cuts the graph of the backward"))
        for each in (ast.walk(where.scope) if where is not None else ())
        if isinstance(each, ast.Attribute) and each.attr in CUTTING and where is not None
    ]
