"""PB720: an error inside the backward of a Function."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.freed.find import SECOND_TIME
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    asked_marks,
    backward_of,
    elements,
    inputs_of,
    running,
)
from pullback.diagnose.evidence.functions.formulas import key_fix, product_fix
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.values import Diagnosis, Fix, Subject
from pullback.language import say


class BackwardRaised(Cause):
    """An operation inside the backward of a custom Function failed.

    The error is one of the code in ``backward`` itself: a product of shapes that do not fit, a name that does not
    exist, an operation that does not know the dtype. The line that called ``.backward()`` only set it going.

    Put ``print(grad.shape)`` or a breakpoint into ``backward``; it runs as ordinary Python, though in a thread of
    torch's own when a GPU is in play. ``torch.autograd.gradcheck`` calls it with small inputs.
    """

    code = "PB720"
    title = "An operation inside the backward of a custom Function failed."

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = running(case)
        if found is None or case.site is None or case.says(*SECOND_TIME, *MODIFIED):
            return None
        node, frame = found
        kind = node._forward_cls
        backward = backward_of(kind)
        inside = [each.place for each in case.frames].count(frame.place)
        if backward is None or not inside or not backward.own:
            return None
        marks = [case.mark(say("this failed, in {name}", name=backward.name))]
        if frame.place != case.site.place:
            marks.append(frame.mark(say("called from {name}", name=backward.name)))
        marks += [*applied_marks(case, kind, node), *asked_marks(case)]
        tensors = [Subject.of(value, name) for name, value in frame.local.items() if isinstance(value, Tensor)]
        return self.found(
            say(
                "The backward of {kind} was running when this failed: {error}: {message}",
                kind=kind.__name__,
                error=type(case.error).__name__,
                message=case.message.partition("\n")[0],
            ),
            marks,
            _fix(case, kind, backward, frame),
            tensors=tensors[:6],
            confidence="medium",
            apart=say("The error is one of the formula in backward; what it should be, the message says."),
        )

    @staticmethod
    def bad():
        import torch

        class Gram(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x @ x.T

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return x @ (grad + grad.T)

        x = torch.randn(4, 3, requires_grad=True)
        Gram.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Gram(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x @ x.T

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return (grad + grad.T) @ x

        x = torch.randn(4, 3, requires_grad=True)
        Gram.apply(x).sum().backward()


def _fix(case: Case, kind: type, backward: Method, frame: Frame) -> Fix:
    """What to look at, by what failed."""
    if "needs_input_grad" in case.text(case.site.node if case.site is not None else None):
        names = inputs_of(kind)
        text = say("needs_input_grad counts from 0, without the context: {names}.", names=", ".join(names))
        code = "\n".join(f"ctx.needs_input_grad[{place}]    # {name}" for place, name in enumerate(names))
        return Fix(text, code, (), "medium")
    mended = key_fix(case)
    if mended is None and case.site is not None and frame.place == case.site.place:
        mended = product_fix(case, frame, _wanted(kind, backward, frame))
    return mended or Fix(say("Mend the marked line of {name}.", name=backward.name), "", (), "low")


def _wanted(kind: type, backward: Method, frame: Frame) -> list[tuple[int, ...]]:
    """The shape of the input whose gradient the failing expression is, if a variable with its name still holds it."""
    node, names = frame.node, inputs_of(kind)
    for each in backward.returns:
        for number, part in enumerate(elements(each)):
            made = backward.assigned(part.id) if isinstance(part, ast.Name) else None
            mine = part is node or (made is not None and made.value is node)
            value = frame.local.get(names[number]) if mine and number < len(names) else None
            if isinstance(value, Tensor):
                return [tuple(value.shape)]
    return []
