"""PB422: an assignment by index to a leaf that requires grad."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.report import cloned_before
from pullback.diagnose.evidence.overwritten.sites import by_gradient, changed_tensor, form_at, is_given, without_grad
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class LeafViewChanged(Cause):
    """`w[0] = 1.0` changes a leaf that requires grad through a view, while autograd is recording.

    An index gives a view: it shares the memory of the leaf, so a write to it is a write to the leaf.

    For setting values (initialisation, padding rows) write under `torch.no_grad()`, or set them before
    `requires_grad_()`. If the change is a part of the computation, change a copy: `w2 = w.clone(); w2[0] = 1.0`,
    and go on with the copy.
    """

    code = "PB422"
    title = "A part of a leaf that requires grad was changed in place, by an index or a view."
    says = ("a view of a leaf variable that requires grad",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        form = form_at(case)
        if case.site is None or (form is not None and by_gradient(form) and form.operation == "+="):
            return None
        tensor = changed_tensor(case, form)
        name = form.path if form is not None and form.path else say("a leaf")
        given = form is not None and is_given(case, form)
        edits = without_grad(case, form) if form is not None and not given else ()
        if form is not None and given and form.statement is not None:
            edits = cloned_before(form.source, form.statement, form.path)
        return self.found(
            say(
                "{name} is a leaf that requires grad, and this line writes to a part of it "
                "while autograd is recording.",
                name=name,
            ),
            [case.mark(say("a part of {name} is changed in place here", name=name))],
            Fix(
                say("Change a clone, and go on with it.")
                if given
                else say(
                    "Write under torch.no_grad(), or before requires_grad_(); if it is a part "
                    "of the computation, change a clone."
                ),
                case.site.source.code(*edits) or f"with torch.no_grad():\n    {case.site.text}",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "leaf", name)] if tensor is not None else [],
        )

    @staticmethod
    def bad():
        import torch

        mask = torch.rand(4, 4, requires_grad=True)
        mask.diagonal().fill_(0.0)

    @staticmethod
    def good():
        import torch

        mask = torch.rand(4, 4, requires_grad=True)
        with torch.no_grad():
            mask.fill_diagonal_(0.0)
