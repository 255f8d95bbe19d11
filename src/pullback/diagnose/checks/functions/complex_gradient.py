"""PB706: a complex gradient for a real input."""

from __future__ import annotations

from typing import Any

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    applied_marks,
    backward_of,
    elements,
    inputs_of,
    nodes_of_functions,
    position,
    returned,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say
from pullback.words import dtype_name


class ComplexGradient(Cause):
    """The backward of a custom Function returned a complex gradient for a real input.

    The gradient of a real input is real: of a complex cotangent ``g`` it is the real part, ``g.real``, because the
    input cannot move along the imaginary axis. (Torch's own operations do this on their own.)

    Torch's text for this, ``Expected isFloatingType(grad.scalar_type()) || ...``, names neither the Function nor the
    input. ``g.abs()`` also makes the error go away, and is wrong.
    """

    code = "PB706"
    title = "A Function's backward returned a complex gradient for a real input."
    says = ("input_is_complex == grad_is_complex",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found: dict[type, tuple[Any, int]] = {}
        for node in reversed(nodes_of_functions(case)):
            if any(each.dtype.is_complex for each in node._input_metadata):
                for index, (child, output) in enumerate(node.next_functions):
                    if child is not None and not child._input_metadata[output].dtype.is_complex:
                        found.setdefault(node._forward_cls, (node, index))
        if not found:
            return None
        kind, (node, index) = next(iter(found.items()))
        method = backward_of(kind)
        if method is None:
            return None
        known = position(node, index)
        place = known if known is not None else index
        names = inputs_of(kind)
        name = names[place] if place < len(names) else str(place + 1)
        wrong = [elements(each)[place] for each in returned(method, len(names)) if place < len(elements(each))]
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        marks += [
            method.mark(each, say("returned as the gradient of {name}, which is real", name=name)) for each in wrong
        ]
        rewrite = method.rewrite()
        for each in wrong:
            text = method.text(each)
            rewrite.replace(each, f"{text}.real" if text.isidentifier() else f"({text}).real")
        edits = rewrite.edits() if method.own and wrong else ()
        child, output = node.next_functions[index]
        dtype: torch.dtype = child._input_metadata[output].dtype
        return self.found(
            say(
                "{kind}.backward returned a complex gradient for {name}, which is {dtype}. Only the real part of it is "
                "the gradient of a real input.",
                kind=kind.__name__,
                name=name,
                dtype=dtype_name(dtype),
            ),
            marks,
            Fix(
                say("Return the real part."), method.source.code(*edits), edits, "high" if len(wrong) == 1 else "medium"
            ),
            confidence="high" if len(found) == 1 else "medium",
            apart="" if len(found) == 1 else say("Which of several Functions it was, torch does not say."),
            useless=[say(".abs(): it is real, but not the gradient.")],
        )

    @staticmethod
    def bad():
        import torch

        class Rotate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, angle):
                out = torch.polar(torch.ones_like(angle), angle)
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx, grad):
                (out,) = ctx.saved_tensors
                return grad * (1j * out).conj()

        angle = torch.randn(4, requires_grad=True)
        Rotate.apply(angle).real.sum().backward()

    @staticmethod
    def good():
        import torch

        class Rotate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, angle):
                out = torch.polar(torch.ones_like(angle), angle)
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx, grad):
                (out,) = ctx.saved_tensors
                return (grad * (1j * out).conj()).real

        angle = torch.randn(4, requires_grad=True)
        Rotate.apply(angle).real.sum().backward()
