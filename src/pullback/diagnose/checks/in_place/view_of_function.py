"""PB431: the output of a custom Function that is a view, changed in place."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.report import out_of_place
from pullback.diagnose.evidence.overwritten.sites import class_named, form_at
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class ViewOfFunction(Cause):
    """A custom `torch.autograd.Function` returned its input or a view of it, and the output was changed in place.

    To follow the change autograd would replace the node of the view by one of its own, and the Function's
    `backward` would be lost. It refuses rather than compute a wrong gradient.

    Change out of place: `y = y + 1`. Or let `forward` return a tensor of its own: `return x.clone()`.
    """

    code = "PB431"
    title = "The output of a custom Function is a view of its input, and was changed in place."
    says = ("view was created inside a custom function",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.says("BackwardHookFunction") or case.site is None:
            return None
        found = re.search(r"Output \d+ of (\w+)", case.message)
        name = re.sub(r"Backward$", "", found.group(1)) if found else ""
        form = form_at(case)
        edits = out_of_place(form)
        marks = [
            case.mark(say("the output of {name} is changed in place here", name=name or "?")),
            *_returned(case, name),
        ]
        return self.found(
            say(
                "What {name} returned shares the memory of its input. A change in place would "
                "bypass the backward of {name}.",
                name=name,
            ),
            marks,
            Fix(
                say("Change it out of place, or return a clone from forward."),
                "\n".join((edit.text or "").strip() for edit in edits) or "return x.clone()",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x

            @staticmethod
            def backward(ctx, grad):
                return 0.5 * grad

        w = torch.randn(3, requires_grad=True)
        out = Scaled.apply(w)
        out.mul_(2)
        out.sum().backward()

    @staticmethod
    def good():
        import torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x

            @staticmethod
            def backward(ctx, grad):
                return 0.5 * grad

        w = torch.randn(3, requires_grad=True)
        out = Scaled.apply(w)
        out = out.mul(2)
        out.sum().backward()


def _returned(case: Case, name: str) -> list[Mark]:
    """The line where the Function returns its output."""
    kind = class_named(case, name)
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None:
        return []
    source = source_of(code.co_filename)
    function = source.function_at(code.co_firstlineno, code.co_name)
    returns = [each for each in ast.walk(function) if isinstance(each, ast.Return)]
    return [marked(source, each, say("{name} returns it here", name=name), code.co_name) for each in returns[-1:]]
