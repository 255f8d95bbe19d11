"""PB708: a Function called like a module instead of through apply."""

from __future__ import annotations

import ast
from typing import Any

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.classes import method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.graph.frames import variables
from pullback.language import say

CODES = (torch.autograd.Function.__call__.__code__, torch.autograd.Function.__init__.__code__)


class CalledDirectly(Cause):
    """A custom Function was made into an object and called, as was done before PyTorch 1.3.

    A Function is never instantiated. Its methods are static, and it is used through ``apply``: ``Square.apply(x)``
    rather than ``Square()(x)``. What used to go into ``__init__`` becomes an argument of ``forward`` (with ``None`` as
    its gradient), and ``self`` becomes ``ctx``.
    """

    code = "PB708"
    title = "A custom Function was instantiated and called instead of being used through apply."
    says = ("Legacy autograd function with non-static forward method", "should not be instantiated")

    def diagnose(self, case: Case) -> Diagnosis | None:
        thing: Any = None
        for frame, _, _ in frames_of(case.error.__traceback__):
            if frame.f_code in CODES:
                thing = variables(frame).get("self")
        if thing is None or case.site is None:
            return None
        kind = type(thing)
        forward = method_of(kind, "forward")
        made = kind.__init__ is not torch.autograd.Function.__init__
        marks = [case.mark(say("an object of {name} is called here", name=kind.__name__))]
        if made and (start := method_of(kind, "__init__")) is not None:
            marks.append(start.mark(start.node, say("what it is given here are to be arguments of forward")))
        if forward is not None:
            marks.append(forward.mark(forward.node, say("this is what apply calls, with a context")))
        edits = _edits(case, kind)
        return self.found(
            say(
                "{name} is a custom Function. It is not a module: an object of it cannot be called, and autograd "
                "records its forward only where it is used as {name}.apply(...).",
                name=kind.__name__,
            ),
            marks,
            Fix(
                say("Use {name}.apply, with what __init__ took as further arguments.", name=kind.__name__)
                if made
                else say("Use {name}.apply.", name=kind.__name__),
                case.site.source.code(*edits) or f"{kind.__name__}.apply(...)",
                () if made else edits,
                "medium" if made or not edits else "high",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        double = Double()
        x = torch.randn(4, requires_grad=True)
        double(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        double = Double.apply
        x = torch.randn(4, requires_grad=True)
        double(x).sum().backward()


def _edits(case: Case, kind: type) -> tuple[Edit, ...]:
    call, site = case.call, case.site
    if call is None or site is None:
        return ()
    func = call.func
    if case.says("should not be instantiated"):  # a warning that is raised as an error
        return (site.source.replaced(call, f"{site.source.text(func)}.apply"),)
    if isinstance(func, ast.Call):
        return (site.source.replaced(func, f"{site.source.text(func.func)}.apply"),)
    known = site.evaluated(ast.Name(kind.__name__)) is kind
    return (site.source.replaced(func, f"{kind.__name__ if known else site.source.text(func)}.apply"),)
