"""PB710: backward does not take one gradient for each output."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    CONTEXTS,
    Method,
    applied_marks,
    backward_of,
    method_of,
    started,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class BackwardArguments(Cause):
    """The backward of a custom Function does not take the context and one gradient for each output.

    ``backward(ctx, grad_a, grad_b)`` gets as many gradients as ``forward`` returns outputs, also for those that the
    loss does not use (they are zeros then, or None after ``ctx.set_materialize_grads(False)``) and for those that are
    not differentiable. What ``forward`` took does not come along: keep it with ``ctx.save_for_backward`` or as an
    attribute of ``ctx``.
    """

    code = "PB710"
    title = "A Function's backward does not take the context and one gradient for each output."
    says = ("positional argument",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = started(case)
        method = backward_of(found[0]._forward_cls) if found else None
        if found is None or method is None or (case.site is not None and case.site.code.co_name == "backward"):
            return None
        node, given = found
        kind = node._forward_cls
        if f"{kind.__name__}.{method.node.name if hasattr(method.node, 'name') else ''}()" not in case.message:
            return None
        names = method.names
        outputs = len(given)
        has_context = bool(names) and (names[0] in CONTEXTS or len(names) != outputs)
        marks = [case.mark(say("the backward pass failed here"))]
        if (forward := method_of(kind, "forward")) is not None:
            marks += [forward.mark(each, say("outputs: {count}", count=outputs)) for each in forward.returns[:1]]
        marks += applied_marks(case, kind, node)
        marks.append(method.mark(method.node, say("it is to take the context and {count} gradients", count=outputs)))
        edits = _edits(method, outputs, has_context)
        return self.found(
            say(
                "{kind} was called back with a context and {count} gradients, one for each output of forward; its "
                "backward takes ({names}).",
                kind=kind.__name__,
                count=outputs,
                names=", ".join(names),
            ),
            marks,
            Fix(
                say("Take the context and one gradient for each output, and use all of them in the formula."),
                method.source.code(*edits),
                edits,
                "high" if not has_context and edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Polar(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return torch.hypot(x, y), torch.atan2(y, x)

            @staticmethod
            def backward(ctx, grad_radius):
                x, y = ctx.saved_tensors
                radius = torch.hypot(x, y)
                return grad_radius * x / radius, grad_radius * y / radius

        x, y = torch.rand(3, requires_grad=True), torch.rand(3)
        radius, angle = Polar.apply(x, y)
        radius.sum().backward()

    @staticmethod
    def good():
        import torch

        class Polar(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return torch.hypot(x, y), torch.atan2(y, x)

            @staticmethod
            def backward(ctx, grad_radius, grad_angle):
                x, y = ctx.saved_tensors
                radius = torch.hypot(x, y)
                across = grad_angle / radius**2
                return grad_radius * x / radius - across * y, grad_radius * y / radius + across * x

        x, y = torch.rand(3, requires_grad=True), torch.rand(3)
        radius, angle = Polar.apply(x, y)
        radius.sum().backward()


def _edits(method: Method, outputs: int, has_context: bool) -> tuple[Edit, ...]:
    arguments = method.arguments
    if not method.own or not arguments:
        return ()
    last = arguments[-1]
    if not has_context:
        return method.rewrite().replace(arguments[0], f"ctx, {method.text(arguments[0])}").edits()
    missing = outputs - (len(arguments) - 1)
    if missing > 0:
        new = ", ".join(f"grad_{number}" for number in range(len(arguments), outputs + 1))
        return method.rewrite().replace(last, f"{method.text(last)}, {new}").edits()
    return ()
