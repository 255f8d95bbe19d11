"""PB408: a parameter updated by hand before the backward."""

from __future__ import annotations

import ast
import textwrap

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called
from pullback.diagnose.evidence.overwritten.find import MODIFIED, Overwritten
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    moved_after,
    name_of,
    of_kind,
    sentence,
    subjects,
    why_not_data,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ManualUpdate(Cause):
    """A parameter was changed in place (`w -= lr * g`, `w.clamp_()`, `w.copy_()`) after a forward pass that used it.

    `torch.no_grad()` keeps the change out of the graph, but the memory is the same: an operation that had kept `w`
    for its backward finds another value. This is about order: forward, backward, then the update.

    Move the change behind the backward pass (or before the forward pass).
    """

    code = "PB408"
    title = "A parameter was changed by hand between the forward pass that used it and the backward pass."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "manual")
        if found is None:
            return None
        name = name_of(found)
        edits = _later(found)
        return self.found(
            sentence(found)
            + " "
            + say(
                "{name} is a parameter, and was changed after the forward pass and before this backward pass.",
                name=name,
            ),
            all_marks(case, found, say("{name} is changed here, before the backward pass", name=name)),
            Fix(
                say("Change the parameter after the backward pass."),
                _code(found, edits),
                edits,
                "high" if edits and found.certain else "medium",
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

        scale = torch.nn.Parameter(torch.rand(3))
        data = torch.randn(3, requires_grad=True)
        error = (scale * data).square().sum()
        with torch.no_grad():
            scale.clamp_(0.1, 0.9)
        error.backward()

    @staticmethod
    def good():
        import torch

        scale = torch.nn.Parameter(torch.rand(3))
        data = torch.randn(3, requires_grad=True)
        error = (scale * data).square().sum()
        error.backward()
        with torch.no_grad():
            scale.clamp_(0.1, 0.9)


def _code(found: Overwritten, edits: tuple[Edit, ...]) -> str:
    """The backward pass, and behind it the change."""
    call = found.asking.text if found.asking is not None else "loss.backward()"
    moved = "\n".join(textwrap.dedent(edit.text) for edit in edits if edit.text)
    return f"{call}\n{moved or 'with torch.no_grad(): ...'}"


def _later(found: Overwritten) -> tuple[Edit, ...]:
    """The edits that move the change, with the block that it is in, behind the backward pass."""
    form, asking = found.form, found.asking
    if form is None or asking is None or asking.source is not form.source:
        return ()
    last = asking.statement
    own = form.source.scope(form.node) is asking.scope
    for each in form.source.around(form.node) if own else ():
        if isinstance(each, ast.stmt) and last is not None and form.source.parent(each) is form.source.parent(last):
            return moved_after(form.source, each, last)
    return moved_after(form.source, _calling(found), last)


def _calling(found: Overwritten) -> ast.stmt | None:
    """The statement before the backward pass, in its block, that calls the function which makes the change."""
    form, asking = found.form, found.asking
    last = asking.statement if asking is not None else None
    if form is None or asking is None or last is None:
        return None
    name = getattr(form.source.scope(form.node), "name", "")
    calls = [each for each in ast.walk(asking.scope) if isinstance(each, ast.Call) and name and called(each) == name]
    statements = [asking.source.statement(each) for each in calls]
    before = [each for each in statements if isinstance(each, ast.Expr) and each.lineno < last.lineno]
    return before[0] if len(before) == 1 else None
