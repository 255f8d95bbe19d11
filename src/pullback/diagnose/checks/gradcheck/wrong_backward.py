"""PB841: the backward of a Function is wrong, says gradcheck."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import Comparison, comparison_in, entries, method_of
from pullback.diagnose.evidence.verdicts import verdict
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class WrongBackward(Cause):
    """The Jacobian that a backward computes differs from the one that finite differences give: the formula is wrong.

    The entries that differ point at the mistake. All wrong by one factor: a constant or a mean is missing. A sign: a
    missing minus. Right where the input is small: the formula was derived for another variable (the input was saved,
    but the formula is one of the output, or the other way round). A whole block of zeros: ``None`` was returned, or the
    gradients are in the wrong order. Only off the diagonal: a sum or a transposition.

    ``pullback.check(f, inputs)`` compares the same by more precise differences, and names the likely mistake.
    Raising ``atol`` or ``eps`` until it passes hides it.
    """

    code = "PB841"
    title = "gradcheck found a backward whose values differ from finite differences."
    says = ("Jacobian mismatch", "Jacobian computed with forward mode mismatch")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or verdict(case, comparison) != "formula":
            return None
        marks = [case.mark(say("gradcheck is called here"))]
        names = [kind.__name__ for kind in comparison.functions]
        for kind in comparison.functions[:2]:
            marks += _backward(kind, comparison)
        if not names and comparison.defined is not None:
            marks += comparison.defined.marks(say("this is checked"))
        what = ", ".join(names) or say("the function")
        return self.found(
            say(
                "The backward of {what} gives other values than differences of its forward (backward / differences): "
                "{entries}.",
                what=what, entries=entries(comparison) or case.message.partition("\n")[0],
            ) + _nature(comparison),
            marks,
            Fix(
                say("Derive backward again for what forward computes and saves; pullback.check(f, inputs) tells more."),
                f"import pullback\npullback.check({case.text(case.argument('func', 0)) or 'f'}, inputs)",
                (), "medium",
            ),
            confidence="high" if names else "medium",
            useless=[say("a larger atol or rtol: the formula stays wrong.")],
            apart=""
            if names
            else say("Whether the function cuts the graph somewhere, or is not smooth at this point."),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 3 * x

        x = torch.tensor([0.5, 2.0], dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(Cube.apply, x)

    @staticmethod
    def good():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 3 * x**2

        x = torch.tensor([0.5, 2.0], dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(Cube.apply, x)


def _backward(kind: type, comparison: Comparison) -> list[Mark]:
    method = method_of(kind, "jvp" if comparison.forward else "backward") or method_of(kind, "backward")
    what = say("{name}: the gradient is computed here", name=kind.__name__)
    return method.marks(what) if method is not None else []


def _nature(comparison: Comparison) -> str:
    """What the entries that differ have in common."""
    wrong = comparison.wrong
    if not wrong:
        return ""
    if all(one == 0 for _, _, one, _ in wrong):
        return " " + say("The backward gives zero: None was returned for this input, or its graph is cut.")
    ratios = [one / two for _, _, one, two in wrong if two]
    if len(ratios) == len(wrong) > 1 and all(abs(each - ratios[0]) < 1e-3 * abs(ratios[0]) for each in ratios):
        return " " + say("All differ by the factor {factor}.", factor=f"{ratios[0].real:.4g}")
    return ""
