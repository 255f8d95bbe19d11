"""PB401: the result of an operation, changed before its backward."""

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


class SavedResult(Cause):
    """The result of an operation was changed in place, and the operation's backward computes from its result.

    `exp`, `sigmoid`, `tanh`, `softmax`, `sqrt`, `relu` and others keep what they returned: the derivative of `y =
    exp(x)` is `y` itself. A later `y += 1` or `y[mask] = 0` changes the very tensor that was kept, and torch
    refuses to compute a wrong gradient.

    Write `y = y + 1`, or change a clone: `y = y.clone()` before the change. `torch.where(mask, 0, y)` stands for an
    assignment by a mask. After operations that do not keep their result (`+`, `*`, `relu` aside) a change in place
    is fine.
    """

    code = "PB401"
    title = "The result of an operation that needs it for its backward was changed in place."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "result")
        if found is None:
            return None
        form = found.form
        edits = out_of_place(form)
        name = name_of(found)
        sure = bool(edits) and found.certain and may_edit(found)
        return self.found(
            sentence(found)
            + " "
            + say(
                "Its derivative is computed from its own result, so that a changed result would give a wrong gradient."
            ),
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

        logits = torch.randn(4, requires_grad=True)
        gate = logits.sigmoid()
        gate *= 2
        gate.sum().backward()

    @staticmethod
    def good():
        import torch

        logits = torch.randn(4, requires_grad=True)
        gate = logits.sigmoid()
        gate = gate * 2
        gate.sum().backward()
