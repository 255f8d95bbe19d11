"""PB848: a complex backward without the conjugate."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, entries, method_of
from pullback.diagnose.evidence.verdicts import verdict
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ComplexConjugate(Cause):
    """The backward of a complex function gives values that differ from the right ones by signs: a conjugate is missing.

    For a complex (holomorphic) function with derivative ``f'(z)``, torch's convention is
    ``grad_input = grad_output * f'(z).conj()``. Real formulas, copied, lack the ``.conj()``.

    Put it at the local derivative: ``return grad * (2 * z).conj()``, not at the incoming gradient. Products of two
    complex tensors: ``grad * other.conj()``; matrices: ``grad @ other.mH``. A function from complex to real numbers
    has the real gradient, multiplied into a complex direction: ``abs`` gives ``grad * z.sgn()``.
    """

    code = "PB848"
    title = "The backward of a complex function lacks a conjugate, says gradcheck."
    says = ("Jacobian mismatch", "Jacobian computed with forward mode mismatch")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or verdict(case, comparison) != "complex":
            return None
        marks = [case.mark(say("gradcheck is called here"))]
        for kind in comparison.functions[:2]:
            if (method := method_of(kind, "backward")) is not None:
                marks += method.marks(say("{name}: the gradient is computed here", name=kind.__name__))
        return self.found(
            say(
                "The entries differ by the signs of their real or imaginary parts only (backward / differences): "
                "{entries}.",
                entries=entries(comparison),
            ),
            marks,
            Fix(
                say("Multiply with the conjugate of the local derivative."),
                "return grad * derivative.conj()",
                (),
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, z):
                ctx.save_for_backward(z)
                return z * z

            @staticmethod
            def backward(ctx, grad):
                (z,) = ctx.saved_tensors
                return grad * 2 * z

        z = torch.tensor([1 + 2j, 0.5 - 1j], dtype=torch.cdouble, requires_grad=True)
        torch.autograd.gradcheck(Square.apply, z)

    @staticmethod
    def good():
        import torch

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, z):
                ctx.save_for_backward(z)
                return z * z

            @staticmethod
            def backward(ctx, grad):
                (z,) = ctx.saved_tensors
                return grad * 2 * z.conj()

        z = torch.tensor([1 + 2j, 0.5 - 1j], dtype=torch.cdouble, requires_grad=True)
        torch.autograd.gradcheck(Square.apply, z)
