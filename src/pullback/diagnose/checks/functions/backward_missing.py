"""PB713: a Function without a backward."""

from __future__ import annotations

import ast
import difflib

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import applied_marks, inputs_of, method_of, started
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class BackwardMissing(Cause):
    """A custom Function has no backward, and a gradient was to go through it.

    ``forward`` of a custom Function runs without recording, so torch cannot differentiate what is in it. Write a static
    method ``backward(ctx, *gradients)`` (or ``vjp``) that returns one gradient for each argument. If torch can
    differentiate all that ``forward`` does, you need no Function: write it as a plain function.

    A method of a name that is nearly right (``backwards``) is not found.
    """

    code = "PB713"
    title = "A custom Function has no backward, and a gradient was to go through it."
    says = ("must implement either the backward or vjp method",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = started(case)
        if found is None:
            return None
        node = found[0]
        kind = node._forward_cls
        forward = method_of(kind, "forward")
        if forward is None:
            return None
        own = [name for each in kind.__mro__ if not each.__module__.startswith("torch.") for name in vars(each)]
        near = [each for each in difflib.get_close_matches("backward", own, 3, 0.7) if each != "forward"]
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        marks.append(forward.mark(forward.node, say("{name} has a forward only", name=kind.__name__)))
        edits: tuple[Edit, ...] = ()
        if near and (method := method_of(kind, near[0])) is not None and not isinstance(method.node, ast.Lambda):
            line = method.source.lines[method.node.lineno - 1]
            edits = (
                Edit(method.source.file, method.node.lineno, method.node.lineno, line.replace(near[0], "backward", 1)),
            )
            place = Place(method.source.file, method.node.lineno, kind.__name__)
            marks.append(Mark.at(place, say("this one is not called backward")))
        names = inputs_of(kind)
        code = "@staticmethod\ndef backward(ctx, grad):\n    ...\n    return " + ", ".join(
            f"grad_{each}" for each in names
        )
        return self.found(
            say(
                "{kind} has no backward, so torch does not know the gradients of {names}.",
                kind=kind.__name__,
                names=", ".join(names),
            ),
            marks,
            Fix(
                say("Call the method backward.") if edits else say("Write a backward, or use a plain function."),
                edits[0].text or "" if edits else code,
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Swish(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * torch.sigmoid(x)

        x = torch.randn(4, requires_grad=True)
        Swish.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        def swish(x):
            return x * torch.sigmoid(x)

        x = torch.randn(4, requires_grad=True)
        swish(x).sum().backward()
