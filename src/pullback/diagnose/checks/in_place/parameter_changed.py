"""PB420: a parameter changed in place outside torch.no_grad()."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.sites import (
    by_gradient,
    changed_tensor,
    form_at,
    is_given,
    module_at,
    without_grad,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ParameterChanged(Cause):
    """A leaf that requires grad (a parameter) was changed in place while autograd was recording.

    If it were allowed, the parameter would stop being a leaf: it would become the result of the change, and what an
    optimizer holds would get no gradient. Initialising or rescaling a weight is not meant to be differentiated.

    Do it where nothing is recorded: `with torch.no_grad(): layer.weight.mul_(0.1)`, or by a function of
    `torch.nn.init`, which does so itself. `layer.weight.data.mul_(0.1)` works too, but hides the change from every
    check.
    """

    code = "PB420"
    title = "A parameter was changed in place where autograd records: outside torch.no_grad()."
    says = ("a leaf variable that requires grad", "leaf variable has been moved into the graph interior")

    def diagnose(self, case: Case) -> Diagnosis | None:
        form = form_at(case)
        if module_at(case) is not None or case.site is None or case.says("a view of a leaf"):
            return None
        if form is not None and (by_gradient(form) or is_given(case, form)):
            return None
        tensor = changed_tensor(case, form)
        name = (
            form.path
            if form is not None and form.path
            else (case.name_of(tensor) if tensor is not None else "") or say("a leaf")
        )
        edits = without_grad(case, form) if form is not None else ()
        return self.found(
            say(
                "{name} is a leaf that requires grad, and this line changes it in place while autograd is recording.",
                name=name,
            ),
            [case.mark(say("{name} is changed in place here", name=name))],
            Fix(
                say("Change it under torch.no_grad()."),
                case.site.source.code(*edits) or f"with torch.no_grad():\n    {case.site.text}",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "leaf", name)] if tensor is not None else [],
            useless=[say("requires_grad_(False) on it for good: it would not be trained any more.")],
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(2, 2)
        layer.bias.fill_(0.5)

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(2, 2)
        with torch.no_grad():
            layer.bias.fill_(0.5)
