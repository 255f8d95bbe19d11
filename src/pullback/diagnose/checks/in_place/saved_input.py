"""PB402: the argument of an operation, changed before its backward."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    code_of,
    may_edit,
    name_of,
    of_kind,
    out_of_place,
    sentence,
    subjects,
    why_not_data,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SavedInput(Cause):
    """A tensor was given to an operation that keeps its argument for the backward, and was changed in place afterwards.

    A product keeps both factors, a power its base, a matrix product both matrices, a convolution its input. A later
    `h[0] = 0`, `h += 1` or `h.clamp_(0)` changes the kept tensor. The order matters: a change *before* the operation is
    fine.

    Make a new tensor (`h = h + 1`, `torch.where`, `h.clamp(0)`), or let `h = h.clone()` come before the change.
    """

    code = "PB402"
    title = "The argument of an operation that needs it for its backward was changed in place."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "input")
        if found is None:
            return None
        form = found.form
        edits = out_of_place(form)
        name = name_of(found)
        sure = bool(edits) and found.certain and may_edit(found)
        return self.found(
            sentence(found)
            + " "
            + say("The derivative by its other arguments, or by itself, is computed from that value."),
            all_marks(case, found, say("{name} is changed in place here", name=name)),
            Fix(
                say("Make a new tensor instead of changing {name}, or change a clone of it.", name=name),
                code_of(form.source if form else None, edits, "h = h + 1    # h += 1"),
                edits,
                "high" if sure else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain(), why_not_data()],
            apart="" if found.certain else say("the line that changed it"),
            wants=""
            if found.certain or case.traced
            else say("Which line changed {name} after it was kept?", name=name),
        )

    @staticmethod
    def bad():
        import torch

        a = torch.randn(2, 3, requires_grad=True)
        b = a + 1
        product = b * b.sum()
        b[:, 0] = 0
        product.sum().backward()

    @staticmethod
    def good():
        import torch

        a = torch.randn(2, 3, requires_grad=True)
        b = a + 1
        product = b * b.sum()
        b = b.clone()
        b[:, 0] = 0
        product.sum().backward()
