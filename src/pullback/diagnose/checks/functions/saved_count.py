"""PB718: another number of tensors taken from the context than saved."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    asked_marks,
    backward_of,
    inputs_of,
    running,
    saver_of,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SavedCount(Cause):
    """The backward of a custom Function takes another number of tensors from the context than forward saved.

    ``ctx.saved_tensors`` is a tuple of what the last ``ctx.save_for_backward(...)`` was given. A second call does not
    add to the first: it replaces it. Save all tensors in one call, and unpack as many:
    ``(x,) = ctx.saved_tensors`` for a single one (``x = ctx.saved_tensors`` would be the tuple).
    """

    code = "PB718"
    title = "A Function's backward takes another number of saved tensors than forward saved."
    says = ("values to unpack", "tuple index out of range")
    raises = (ValueError, IndexError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = running(case)
        if found is None or case.site is None or case.site.code is not found[1].code:
            return None
        node, frame = found
        kind = node._forward_cls
        saver, backward, statement = saver_of(kind), backward_of(kind), frame.statement
        if (
            saver is None
            or backward is None
            or statement is None
            or "saved_tensors" not in frame.source.text(statement)
        ):
            return None
        calls = saver.calls("save_for_backward")
        taken = _targets(backward, statement)
        saved = [saver.text(each) for each in calls[-1].args] if calls else []
        marks = [case.mark(say("more or fewer are taken here than were saved"))]
        for number, call in enumerate(calls):
            last = number == len(calls) - 1
            marks.append(
                saver.mark(call, say("saved here") if last else say("saved here, and replaced by the next call"))
            )
        if not calls:
            marks.append(saver.mark(saver.node, say("nothing is saved in here")))
        marks += [*applied_marks(case, kind, node), *asked_marks(case)]
        edits, code = _edits(saver, kind, calls, taken, saved)
        if len(calls) > 1:
            cause = say(
                "{kind} calls save_for_backward {count} times; only the last call counts, so there is ({saved}).",
                kind=kind.__name__,
                count=len(calls),
                saved=", ".join(saved),
            )
        else:
            cause = say(
                "{kind}.backward takes ({taken}) from ctx.saved_tensors, but what was saved is ({saved}).",
                kind=kind.__name__,
                taken=", ".join(taken) or "...",
                saved=", ".join(saved),
            )
        return self.found(
            cause,
            marks,
            Fix(
                say("Save in one call what backward takes, in that order."),
                code or saver.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x)
                ctx.save_for_backward(y)
                return x * y

            @staticmethod
            def backward(ctx, grad):
                x, y = ctx.saved_tensors
                return grad * y, grad * x

        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        Product.apply(x, y).sum().backward()

    @staticmethod
    def good():
        import torch

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx, grad):
                x, y = ctx.saved_tensors
                return grad * y, grad * x

        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        Product.apply(x, y).sum().backward()


def _targets(backward: Method, statement: ast.stmt) -> list[str]:
    """The names that the saved tensors are unpacked to."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple | ast.List):
        return [backward.text(each) for each in statement.targets[0].elts]
    return []


def _edits(
    saver: Method, kind: type, calls: list[ast.Call], taken: list[str], saved: list[str]
) -> tuple[tuple[Edit, ...], str]:
    """One call that saves what is taken, where every name of it is at hand in forward."""
    if not saver.own or not taken or any(isinstance(each, ast.Starred) for call in calls for each in call.args):
        return (), ""
    all_saved = [saver.text(each) for call in calls for each in call.args]
    at_hand = {*inputs_of(kind), *all_saved} if saver.name.endswith("forward") else set(all_saved)
    wanted = all_saved if len(all_saved) == len(taken) and len(calls) > 1 else taken
    if not set(wanted) <= at_hand or (len(calls) <= 1 and not set(saved) <= set(taken)):
        return (), ""
    text = f"{saver.context}.save_for_backward({', '.join(wanted)})"
    rewrite = saver.rewrite()
    if not calls:
        if not saver.body:
            return (), ""
        return rewrite.before(saver.body[0], text).edits(), text
    rewrite.replace(calls[-1], text)
    for call in calls[:-1]:
        statement = saver.source.statement(call)
        if statement is not None:
            rewrite.remove(statement)
    return rewrite.edits(), text
