"""PB421: a parameter updated by its gradient outside torch.no_grad()."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.sites import by_gradient, changed_tensor, form_at, without_grad
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ManualStep(Cause):
    """`w -= lr * w.grad` changes a leaf that requires grad, while autograd is recording.

    A step of gradient descent is not part of the function that is differentiated: it must not be recorded.

    Write it under `with torch.no_grad():`, and set the gradient to None afterwards. `w = w - lr * w.grad` is no
    cure: it makes a new tensor that is not a leaf, so the next `backward()` leaves `w.grad` at None.
    """

    code = "PB421"
    title = "A parameter was updated by hand with its gradient, outside torch.no_grad()."
    says = ("a leaf variable that requires grad",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        form = form_at(case)
        if form is None or case.site is None or not by_gradient(form):
            return None
        tensor = changed_tensor(case, form)
        name = form.path or say("the parameter")
        edits = without_grad(case, form)
        return self.found(
            say(
                "{name} is a leaf that requires grad; its update by a gradient is being "
                "recorded as a part of the graph.",
                name=name,
            ),
            [case.mark(say("{name} is updated in place here", name=name))],
            Fix(
                say("Make the update under torch.no_grad()."),
                case.site.source.code(*edits) or f"with torch.no_grad():\n    {case.site.text}",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "leaf", name)] if tensor is not None else [],
            useless=[
                say(
                    "{name} = {name} - ...: a new tensor that is no leaf; its .grad stays None in the next turn.",
                    name=name,
                ),
                say("{name}.data -= ...: it works, but hides the change from the checks of autograd.", name=name),
            ],
        )

    @staticmethod
    def bad():
        import torch

        theta = torch.randn(2, requires_grad=True)
        theta.square().sum().backward()
        theta -= 0.1 * theta.grad

    @staticmethod
    def good():
        import torch

        theta = torch.randn(2, requires_grad=True)
        theta.square().sum().backward()
        with torch.no_grad():
            theta -= 0.1 * theta.grad
