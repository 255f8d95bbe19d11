"""PB423: a function or module that changes its input in place, given a leaf."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.report import out_of_place, without_inplace
from pullback.diagnose.evidence.overwritten.sites import by_gradient, changed_tensor, form_at, is_given, module_at
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class InputChanged(Cause):
    """A forward function changed its argument in place (`x += 1`, an `nn.ReLU(inplace=True)`), and was given a leaf.

    With ordinary data nothing is noticed; as soon as the input requires grad (saliency maps, adversarial examples, a
    gradient check) the change of a leaf is refused. It changed the caller's tensor all along.

    Write `x = x + 1`, or leave `inplace=True` out of the first layer.
    """

    code = "PB423"
    title = "A function or module changed its input in place, and the input is a leaf that requires grad."
    says = ("a leaf variable that requires grad",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        form, module = form_at(case), module_at(case)
        if case.site is None or case.says("a view of a leaf"):
            return None
        if module is None and (form is None or by_gradient(form) or not is_given(case, form)):
            return None
        edits = without_inplace(case, type(module).__name__)[0] if module is not None else out_of_place(form)
        what = type(module).__name__ if module is not None else (form.path if form is not None else "")
        tensor = changed_tensor(case, form)
        return self.found(
            say(
                "A {kind} with inplace=True was given a leaf that requires grad, and writes its result over it.",
                kind=what,
            )
            if module is not None
            else say("{name} was handed in, is a leaf that requires grad, and is changed in place here.", name=what),
            [case.mark(say("the input is changed in place here"))],
            Fix(
                say("Make a new tensor instead of changing the input."),
                "\n".join((edit.text or "").strip() for edit in edits),
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "leaf", what)] if tensor is not None and form is not None else [],
        )

    @staticmethod
    def bad():
        import torch

        def centred(values):
            values -= values.detach().mean()
            return values.square().sum()

        points = torch.randn(5, requires_grad=True)
        centred(points).backward()

    @staticmethod
    def good():
        import torch

        def centred(values):
            values = values - values.detach().mean()
            return values.square().sum()

        points = torch.randn(5, requires_grad=True)
        centred(points).backward()
