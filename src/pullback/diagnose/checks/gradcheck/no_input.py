"""PB846: gradcheck without an input that requires grad."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, input_marks
from pullback.diagnose.evidence.transforms import wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoInput(Cause):
    """None of the inputs given to gradcheck requires grad, so that there is nothing to check.

    gradcheck differentiates by the inputs with ``requires_grad=True``:
    ``torch.randn(3, dtype=torch.double, requires_grad=True)``. They should be double.

    To check by the parameters of a module, make them inputs:
    ``gradcheck(lambda w: torch.func.functional_call(net, {"weight": w}, x), w)``. ``x.detach()`` and ``.double()`` of
    a leaf give new tensors: call ``.requires_grad_()`` last.
    """

    code = "PB846"
    title = "gradcheck was given no input that requires grad."
    says = ("expects at least one input tensor to require gradient",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        given = case.argument("inputs", 1)
        if comparison is None or case.site is None:
            return None
        edits: tuple[Edit, ...] = ()
        target = given.elts[0] if isinstance(given, ast.Tuple | ast.List) and given.elts else given
        first = comparison.inputs[0] if comparison.inputs else None
        if target is not None and first is not None and first.is_floating_point():
            text = wrapped_text(case.text(target), target)
            double = "" if first.element_size() == 8 else ".double()"
            edits = (case.site.source.replaced(target, f"{text}{double}.requires_grad_()"),)
        told = ", ".join(
            f"{case.name_of(each) or number} {tuple(each.shape)} requires_grad={each.requires_grad}"
            for number, each in enumerate(comparison.inputs)
        )
        return self.found(
            say("The inputs: {inputs}.", inputs=told or say("no tensor")),
            [case.mark(say("gradcheck is called here")), *input_marks(case, comparison.inputs)],
            Fix(say("Make the input that is to be checked require grad."),
                "\n".join(each.text.strip() for each in edits if each.text), edits, "high" if edits else "medium"),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.rand(3, dtype=torch.double)
        torch.autograd.gradcheck(torch.exp, x)

    @staticmethod
    def good():
        import torch

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(torch.exp, x)
