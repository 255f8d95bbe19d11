"""PB703: another number of gradients than of inputs."""

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
    returned,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class GradientCount(Cause):
    """The backward of a custom Function returned another number of gradients than forward has arguments.

    ``backward`` returns one value for each argument of ``forward`` (the context does not count), in their order, and
    ``None`` for those that have no gradient: numbers, flags, index tensors, constants. Values that are ``None`` may
    follow; any other value too many is an error.

    The number is of the arguments that ``apply`` was called with, so an argument with a default counts only when it was
    given.
    """

    code = "PB703"
    title = "A Function's backward returned another number of gradients than forward has arguments."
    says = ("returned an incorrect number of gradients",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found, said = named(case), re.search(r"expected (\d+), got (\d+)", case.message)
        method = backward_of(found[0]) if found else None
        if found is None or said is None or method is None:
            return None
        kind, node = found
        wanted, got = int(said[1]), int(said[2])
        values = returned(method, got)
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        marks += [
            method.mark(each, say("{got} returned, {wanted} expected", got=got, wanted=wanted)) for each in values[:3]
        ]
        if not values:
            marks.append(method.mark(method.node, say("it returns nothing")))
        names = inputs_of(kind)[:wanted]
        value = values[0] if len(values) == 1 else None
        fix = _more(method, value, names, node, got) if got < wanted else _fewer(method, value, wanted, got)
        return self.found(
            say(
                "{kind}.backward has to return a gradient for each argument ({names}): {wanted}. It returned {got}.",
                kind=kind.__name__,
                wanted=wanted,
                names=", ".join(names),
                got=got,
            ),
            marks,
            fix,
        )

    @staticmethod
    def bad():
        import torch

        class Leaky(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, slope):
                ctx.save_for_backward(x)
                ctx.slope = slope
                return torch.where(x > 0, x, slope * x)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return torch.where(x > 0, grad, ctx.slope * grad)

        x = torch.randn(4, requires_grad=True)
        Leaky.apply(x, 0.1).sum().backward()

    @staticmethod
    def good():
        import torch

        class Leaky(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, slope):
                ctx.save_for_backward(x)
                ctx.slope = slope
                return torch.where(x > 0, x, slope * x)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return torch.where(x > 0, grad, ctx.slope * grad), None

        x = torch.randn(4, requires_grad=True)
        Leaky.apply(x, 0.1).sum().backward()


def _more(method: Method, value: ast.expr | None, names: list[str], node: object, got: int) -> Fix:
    needs = getattr(node, "needs_input_grad", None)
    missing = names[got:]
    constant = needs is not None and not any(needs[got:])
    text = (
        say("Return None for {names} too: no gradient is needed there.", names=", ".join(missing))
        if constant
        else say(
            "Return a gradient for {names} too, in the order of the arguments of forward.", names=", ".join(missing)
        )
    )
    edits: tuple[Edit, ...] = ()
    if value is not None and method.own:
        written = ", ".join([*map(method.text, elements(value)), *["None"] * max(len(missing), 1)])
        bare = isinstance(value, ast.Tuple) and not method.text(value).startswith("(")
        edits = (
            method.rewrite()
            .replace(value, written if bare or not isinstance(value, ast.Tuple) else f"({written})")
            .edits()
        )
    return Fix(text, method.source.code(*edits), edits if constant else (), "high" if constant and edits else "medium")


def _fewer(method: Method, value: ast.expr | None, wanted: int, got: int) -> Fix:
    edits: tuple[Edit, ...] = ()
    if value is not None and method.own and len(elements(value)) == got:
        kept = ", ".join(method.text(each) for each in elements(value)[:wanted])
        edits = method.rewrite().replace(value, kept or "None").edits()
    text = say("Return {wanted} gradients, in the order of the arguments of forward.", wanted=wanted)
    return Fix(text, method.source.code(*edits), edits, "medium")
