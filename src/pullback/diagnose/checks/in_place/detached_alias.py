"""PB404: a kept tensor, changed through a detached alias."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.forms import Form
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    code_of,
    of_kind,
    sentence,
    subjects,
    why_not_data,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DetachedAlias(Cause):
    """`h.detach()` was changed in place, and with it `h`, which an operation had kept.

    `detach()` gives a tensor without history, not a tensor of its own: both share memory. With `detach()` they
    share the version counter too, so the change is noticed. Through `.data` or a NumPy array it is not noticed, and
    the gradients are silently wrong.

    Write `h.detach().clone()` for a copy that may be changed.
    """

    code = "PB404"
    title = "A tensor that an operation had kept was changed in place through a detached alias."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "detached")
        if found is None:
            return None
        form, alias = found.form, found.alias
        edits = _cloned(form, alias)
        return self.found(
            sentence(found)
            + " "
            + say("detach() cuts the graph but shares the memory: what was changed is the kept tensor itself."),
            all_marks(case, found, say("changed in place here, through a detached alias")),
            Fix(
                say("Clone after detaching: the copy can be changed freely."),
                code_of(form.source if form else None, edits, "h.detach().clone()"),
                edits,
                "high" if edits and found.certain else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain(), why_not_data()],
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        prediction = w.exp()
        shown = prediction.detach()
        shown.clamp_(max=1)
        prediction.sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        prediction = w.exp()
        shown = prediction.detach().clone()
        shown.clamp_(max=1)
        prediction.sum().backward()


def _cloned(form: Form | None, alias: ast.Assign | None) -> tuple[Edit, ...]:
    """The edit that puts a clone after the call of ``detach``, where the alias is made or inside the change itself."""
    around = alias if alias is not None else form.node if form is not None else None
    if form is None or around is None:
        return ()
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
            return (form.source.replaced(node, f"{form.source.text(node)}.clone()"),)
    return ()
