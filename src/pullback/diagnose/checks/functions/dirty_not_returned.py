"""PB711: an input marked as dirty that is not returned."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import Method, called, elements, method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DirtyNotReturned(Cause):
    """An input that forward marked as dirty is not among the outputs of the Function.

    ``ctx.mark_dirty(x)`` says that ``forward`` changed ``x`` in place. From then on the changed ``x`` is a result of
    the Function, and has to be returned: the very same object, not a clone of it.

    Where the input was not changed in place, leave ``mark_dirty`` out. Where only a result is wanted, compute it out of
    place (``x + 1`` rather than ``x.add_(1)``) and mark nothing.
    """

    code = "PB711"
    title = "An input that forward marked as dirty is not returned."
    says = ("marked as dirty during the forward method were not returned",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = called(case)
        forward = method_of(found[0], "forward") if found else None
        if found is None or forward is None:
            return None
        kind = found[0]
        calls = forward.calls("mark_dirty")
        dirty = [each for call in calls for each in call.args]
        name = ", ".join(map(forward.text, dirty)) or say("an input")
        marks = [case.mark(say("{name} was applied here", name=kind.__name__))]
        marks += [forward.mark(call, say("marked as dirty here")) for call in calls[:1]]
        marks += [forward.mark(each, say("returned without {name}", name=name)) for each in forward.returns[:3]]
        edits = _edits(forward, dirty)
        return self.found(
            say(
                "{kind}.forward says that it changed {name} in place, but returns other tensors. The changed {name} is "
                "a result, and has to be returned itself.",
                kind=kind.__name__,
                name=name,
            ),
            marks,
            Fix(
                say("Return {name} itself.", name=name),
                forward.source.code(*edits) or f"return {name}",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class ReLU(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                out = x.clamp_(min=0).clone()
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx, grad):
                (out,) = ctx.saved_tensors
                return grad * (out > 0)

        x = torch.randn(4, requires_grad=True)
        ReLU.apply(x * 2).sum().backward()

    @staticmethod
    def good():
        import torch

        class ReLU(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                x.clamp_(min=0)
                ctx.save_for_backward(x)
                return x

            @staticmethod
            def backward(ctx, grad):
                (out,) = ctx.saved_tensors
                return grad * (out > 0)

        x = torch.randn(4, requires_grad=True)
        ReLU.apply(x * 2).sum().backward()


def _edits(forward: Method, dirty: list[ast.expr]) -> tuple[Edit, ...]:
    """Return the input instead of a copy of it."""
    if not forward.own or len(forward.returns) != 1 or len(dirty) != 1 or not isinstance(dirty[0], ast.Name):
        return ()
    values = elements(forward.returns[0])
    copies = [each for each in values if _is_copy(each, dirty[0].id)]
    if len(copies) != 1:
        return ()
    return forward.rewrite().replace(copies[0], dirty[0].id).edits()


def _is_copy(value: ast.expr, name: str) -> bool:
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    if not is_method or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    of = value.func.value
    return value.func.attr in ("clone", "detach", "view_as") and isinstance(of, ast.Name) and of.id == name
