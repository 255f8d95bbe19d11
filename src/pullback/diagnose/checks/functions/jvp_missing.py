"""PB714: forward mode through a Function without a jvp."""

from __future__ import annotations

import ast
from typing import Any

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.cuts.found import marked
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.classes import backward_of, called, inputs_of, method_of, saver_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.graph.frames import variables
from pullback.language import say


class JvpMissing(Cause):
    """Forward mode went through a custom Function that has no jvp.

    ``torch.func.jvp``, ``jacfwd``, ``hessian`` (forward over reverse) and ``torch.autograd.forward_ad`` carry tangents
    forward. ``backward`` does not tell how; for that a Function needs a static method ``jvp(ctx, *tangents)`` that gets
    one tangent (or None) for each argument and returns one for each output.

    What ``jvp`` needs is kept with ``ctx.save_for_forward(...)`` (or as an attribute). Where the values are all that
    you want, use reverse mode instead: ``torch.func.vjp``, ``jacrev``, ``jacrev(jacrev(f))``.
    """

    code = "PB714"
    title = "Forward-mode differentiation went through a custom Function that has no jvp."
    says = ("must implement the jvp function for custom autograd.Function",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        kind = _kind(case)
        forward = method_of(kind, "forward") if kind is not None else None
        if kind is None or forward is None:
            return None
        marks = [case.mark(say("a tangent is carried into {name} here", name=kind.__name__))]
        marks.append(
            marked(
                forward.source,
                forward.source.parent(forward.node) or forward.node,
                say("{name} has no jvp", name=kind.__name__),
            )
        )
        if (backward := backward_of(kind)) is not None:
            marks.append(backward.mark(backward.node, say("backward serves reverse mode only")))
        names = inputs_of(kind)
        saver = saver_of(kind)
        saved = [saver.text(each) for call in saver.calls("save_for_backward") for each in call.args] if saver else []
        keep = (
            f"ctx.save_for_forward({', '.join(saved)})    # in {saver.node.name}\n\n"
            if saver and saved and not isinstance(saver.node, ast.Lambda)
            else ""
        )
        tangents = ", ".join(f"{each}_t" for each in names)
        return self.found(
            say(
                "{kind} has a forward and a backward, but no jvp: torch cannot tell how a tangent of {names} goes on.",
                kind=kind.__name__,
                names=", ".join(names),
            ),
            marks,
            Fix(
                say(
                    "Write a jvp that turns the tangents of the inputs into those of the outputs, or use reverse mode."
                ),
                f"{keep}@staticmethod\ndef jvp(ctx, {tangents}):\n    return ...  # the derivative in that direction",
            ),
            useless=[say("Implementing vjp: that is another name of backward.")],
        )

    @staticmethod
    def bad():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return x**3

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

        x = torch.randn(3)
        torch.func.jvp(Cube.apply, (x,), (torch.ones(3),))

    @staticmethod
    def good():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return x**3

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)
                ctx.save_for_forward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

            @staticmethod
            def jvp(ctx, tangent):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * tangent

        x = torch.randn(3)
        torch.func.jvp(Cube.apply, (x,), (torch.ones(3),))


def _kind(case: Case) -> type | None:
    """The Function, seen through the classes that torch.func generates."""
    for frame, _, _ in frames_of(case.error.__traceback__):
        local: Any = variables(frame) if frame.f_code.co_name in ("custom_function_call_grad", "__call__") else {}
        kind = local.get("autograd_function")
        if isinstance(kind, type) and issubclass(kind, torch.autograd.Function):
            return kind
    found = called(case)
    return found[0] if found else None
