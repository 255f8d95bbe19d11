"""PB705: a gradient on another device than its input."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    backward_of,
    elements,
    inputs_of,
    named,
    position,
    returned,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

MAKERS = frozenset({"empty", "zeros", "ones", "full", "randn", "rand", "eye", "arange", "tensor"})


class GradientDevice(Cause):
    """The backward of a custom Function returned a gradient on another device than the input.

    A gradient lives where its input lives. The slip is nearly always a new tensor made in ``backward`` without a
    device (``torch.zeros(n)`` is on the CPU), or a constant kept on ``ctx`` or in the module that did not move along.
    Make new tensors from what is there: ``torch.zeros_like(x)``, ``g.new_zeros(n)``, ``device=g.device``.

    ``torch.set_default_device`` hides the slip rather than mending it.
    """

    code = "PB705"
    title = "A Function's backward returned a gradient on another device than the input."
    says = ("expected device",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"at index (\d+) - expected device (\S+) but got (\S+)", case.message)
        found = named(case)
        method = backward_of(found[0]) if found else None
        if said is None or found is None or method is None:
            return None
        kind, node = found
        index, wanted, got = int(said[1]), said[2], said[3]
        known = position(node, index) if node is not None else None
        place = known if known is not None else index
        names = inputs_of(kind)
        name = names[place] if place < len(names) else str(place + 1)
        wrong = [elements(each)[place] for each in returned(method, len(names)) if place < len(elements(each))]
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        made = [value for each in wrong if (value := _maker(method, each)) is not None]
        for each in wrong:
            before = method.assigned(each.id) if isinstance(each, ast.Name) else None
            if before is not None:
                marks.append(method.mark(before, say("it is made here")))
            marks.append(method.mark(each, say("returned as the gradient of {name}, on {got}", name=name, got=got)))
        gradient = method.names[1] if len(method.names) > 1 else "g"
        edits = _edits(method, made[0], gradient) if len(made) == 1 and method.own else ()
        code = f"({method.text(wrong[0])}).to({gradient}.device)" if len(wrong) == 1 else ""
        return self.found(
            say(
                "{kind}.backward returned a gradient on {got} for {name}, which is on {wanted}.",
                kind=kind.__name__,
                got=got,
                name=name,
                wanted=wanted,
            ),
            marks,
            Fix(
                say("Make it on the device of the incoming gradient."),
                method.source.code(*edits) or code,
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Mask(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(min=0)

            @staticmethod
            def backward(ctx, grad):
                return torch.ones(5, device="meta")

        x = torch.randn(5, requires_grad=True)
        Mask.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Mask(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(min=0)

            @staticmethod
            def backward(ctx, grad):
                return torch.ones(5, device=grad.device)

        x = torch.randn(5, requires_grad=True)
        Mask.apply(x).sum().backward()


def _maker(method: Method, value: ast.expr) -> ast.Call | None:
    if isinstance(value, ast.Name):
        made = method.assigned(value.id)
        value = made.value if made is not None else value
    is_maker = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MAKERS
    return value if is_maker and isinstance(value, ast.Call) else None


def _edits(method: Method, call: ast.Call, gradient: str) -> tuple[Edit, ...]:
    device = next((each.value for each in call.keywords if each.arg == "device"), None)
    if device is not None:
        return method.rewrite().replace(device, f"{gradient}.device").edits()
    text = method.text(call)
    return method.rewrite().replace(call, f"{text[:-1].rstrip().rstrip(',')}, device={gradient}.device)").edits()
