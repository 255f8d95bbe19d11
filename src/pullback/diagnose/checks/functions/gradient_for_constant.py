"""PB701: a gradient for an argument that is no tensor."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    applied_marks,
    backward_of,
    elements,
    inputs_of,
    named,
    returned,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class GradientForConstant(Cause):
    """The backward of a custom Function returned a gradient for an argument that is not a tensor.

    ``backward`` returns one value for each argument of ``forward``, in their order. Numbers, strings, lists and None
    have no gradient: at their place stands ``None``. Torch counts the places from 1.

    If the number is to be learned, it has to be a tensor that requires grad: ``F.apply(x, torch.tensor(2.0,
    requires_grad=True))``. A list of tensors is no tensor either; pass its elements one by one (``F.apply(*tensors)``).
    """

    code = "PB701"
    title = "A Function's backward returned a gradient for an argument that is not a tensor."
    says = ("returned a gradient different than None at position",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found, place = named(case), re.search(r"at position (\d+)", case.message)
        method = backward_of(found[0]) if found else None
        if found is None or method is None or place is None:
            return None
        kind, node = found
        index = int(place[1]) - 1
        names = inputs_of(kind)
        name = names[index] if index < len(names) else str(index + 1)
        values = [each for each in returned(method, max(len(names), index + 1)) if index < len(elements(each))]
        wrong = [elements(each)[index] for each in values]
        wrong = [each for each in wrong if method.text(each) != "None"]
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        marks += [method.mark(each, say("this is returned as the gradient of {name}", name=name)) for each in wrong]
        if not wrong:
            marks.append(method.mark(method.returns[0] if method.returns else method.node, say("returned here")))
        rewrite = method.rewrite()
        for each in wrong:
            rewrite.replace(each, "None")
        edits = rewrite.edits() if method.own and len(wrong) == 1 else ()
        return self.found(
            say(
                "{kind}.backward returned something other than None as gradient number {number}, that of {name}. But "
                "{name} was not a tensor when {kind} was applied, so there is nothing that could take a gradient.",
                kind=kind.__name__,
                number=index + 1,
                name=name,
            ),
            marks,
            Fix(
                say("Return None for {name}.", name=name),
                method.source.code(*edits) or f"return ..., None  # {name}",
                edits,
                "high" if edits else "medium",
            ),
            notes=[say("To learn {name}, pass it as a tensor that requires grad.", name=name)],
        )

    @staticmethod
    def bad():
        import torch

        class Power(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, exponent):
                ctx.save_for_backward(x)
                ctx.exponent = exponent
                return x**exponent

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                slope = ctx.exponent * x ** (ctx.exponent - 1)
                return grad * slope, grad * x.log()

        x = torch.rand(4, requires_grad=True)
        Power.apply(x, 3).sum().backward()

    @staticmethod
    def good():
        import torch

        class Power(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, exponent):
                ctx.save_for_backward(x)
                ctx.exponent = exponent
                return x**exponent

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                slope = ctx.exponent * x ** (ctx.exponent - 1)
                return grad * slope, None

        x = torch.rand(4, requires_grad=True)
        Power.apply(x, 3).sum().backward()
