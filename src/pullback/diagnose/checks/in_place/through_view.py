"""PB403: a kept tensor, changed through a view of it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.forms import base_of
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    cloned_before,
    code_of,
    may_edit,
    name_of,
    of_kind,
    sentence,
    subjects,
    why_not_data,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ThroughView(Cause):
    """A view (`h[:2]`, `h.view(-1)`, `h.T`, a row of a loop) was changed in place, and with it the tensor behind it.

    A view has no memory of its own. Changing it changes its base, and raises the version of both; if an operation
    had kept the base (or another view of it) for its backward, that value is gone.

    Take a clone before making the view: `h = h.clone()`. Or build the changed tensor anew: `torch.where`, `torch.cat`,
    `torch.index_fill`.
    """

    code = "PB403"
    title = "A tensor that an operation had kept was changed in place through a view of it."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "view")
        if found is None:
            return None
        form, alias = found.form, found.alias
        name = name_of(found)
        edits: tuple[Edit, ...] = ()
        if form is not None:
            target = alias if alias is not None else form.statement
            path = path_of(base_of(alias.value)[0]) if alias is not None else form.path
            edits = cloned_before(form.source, target, path) if target is not None and path else ()
        return self.found(
            sentence(found)
            + " "
            + say(
                "A view of it was changed in place: a view shares its memory, so that the kept tensor changed with it."
            ),
            all_marks(case, found, say("changed in place here, through a view")),
            Fix(
                say(
                    "Take a clone before making the view, or build the new value without "
                    "changing in place (torch.where, torch.cat)."
                ),
                code_of(form.source if form else None, edits, "h = h.clone()"),
                edits,
                "high" if edits and found.certain and may_edit(found) else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain(), why_not_data()],
            wants=""
            if found.certain or case.traced
            else say("Which line changed {name} after it was kept?", name=name),
        )

    @staticmethod
    def bad():
        import torch

        x = torch.randn(6, requires_grad=True)
        scores = x.tanh()
        table = scores.view(2, 3)
        table.mul_(0.5)
        scores.sum().backward()

    @staticmethod
    def good():
        import torch

        x = torch.randn(6, requires_grad=True)
        scores = x.tanh()
        scores = scores.clone()
        table = scores.view(2, 3)
        table.mul_(0.5)
        scores.sum().backward()
