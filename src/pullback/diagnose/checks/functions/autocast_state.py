"""PB722: custom_bwd without custom_fwd."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import applied_marks, asked_marks, backward_of, method_of, started
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class AutocastState(Cause):
    """A Function's backward is decorated with custom_bwd, but its forward is not decorated with custom_fwd.

    ``custom_bwd`` runs ``backward`` with the autocast state that ``custom_fwd`` noted on the context in ``forward``.
    The two belong together, with the same ``device_type``, and both stand below ``@staticmethod``.
    """

    code = "PB722"
    title = "A Function's backward is decorated with custom_bwd, but its forward not with custom_fwd."
    says = ("has no attribute '_fwd_used_autocast'", "has no attribute '_dtype'")
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = started(case)
        if found is None:
            return None
        node = found[0]
        kind = node._forward_cls
        forward, backward = method_of(kind, "forward"), backward_of(kind)
        if forward is None or backward is None or isinstance(forward.node, ast.Lambda):
            return None
        decorators = getattr(backward.node, "decorator_list", [])
        own = next((each for each in decorators if "custom_bwd" in backward.text(each)), None)
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        marks.append(forward.mark(forward.node, say("forward has no custom_fwd")))
        marks += [backward.mark(own, say("backward has custom_bwd"))] if own is not None else []
        marks += asked_marks(case)
        edits: tuple[Edit, ...] = ()
        if own is not None and forward.own:
            text = "@" + backward.text(own).replace("custom_bwd", "custom_fwd")
            known = "." in text.partition("(")[0] or any("custom_fwd" in line for line in forward.source.lines)
            edits = (forward.source.inserted_before(forward.node.lineno, text),) if known else ()
        return self.found(
            say(
                "{kind}.backward is to run with the autocast state of forward, but {kind}.forward did not note it.",
                kind=kind.__name__,
            ),
            marks,
            Fix(
                say("Decorate forward with custom_fwd as well."),
                forward.source.code(*edits) or "@torch.amp.custom_fwd(device_type=...)",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            @torch.amp.custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                return grad * 2

        x = torch.randn(3, requires_grad=True)
        Twice.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Twice(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cpu")
            def forward(ctx, x):
                return x * 2

            @staticmethod
            @torch.amp.custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                return grad * 2

        x = torch.randn(3, requires_grad=True)
        Twice.apply(x).sum().backward()
