"""PB732: a hook that returns a gradient of another dtype or device."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.hooks.changed_gradient import candidates, marked
from pullback.diagnose.evidence.functions.hooks import named_hook
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

CASTS = re.compile(
    r"\.(double|half|float|bfloat16|to|cuda|cpu|type|long|int|to_sparse|to_dense|zeros|ones|full|tensor|randn|rand)\b"
    r"|dtype|device"
)


class ChangedType(Cause):
    """A hook returned a gradient of another dtype, device or layout than it was given.

    What a hook returns replaces the gradient, and has to be of its dtype, device and layout. Compute in another dtype
    if you like, and go back at the end: ``lambda g: (g.double() * scale).to(g.dtype)``. New tensors take over both from
    the gradient: ``torch.zeros_like(g)``, ``g.new_ones(...)``.
    """

    code = "PB732"
    title = "A hook returned a gradient of another dtype, device or layout than it was given."
    says = ("has changed the type of value", "has changed the device", "has changed the dtype")

    def diagnose(self, case: Case) -> Diagnosis | None:
        hooks, confidence = candidates(case, CASTS)
        said = re.search(r"was (\S+) got (\S+?)\)", case.message)
        was, got = (said[1], said[2]) if said else ("?", "?")
        marks = [case.mark(say("the backward pass failed here"))]
        marks += marked(hooks, say("what this returns replaces the gradient"))
        edits: tuple[Edit, ...] = ()
        hook = hooks[0].hook if len(hooks) == 1 else None
        if hook is not None and hook.own and len(hook.returns) == 1 and hook.first and "sparse" not in got:
            value, gradient = hook.returns[0], hook.first
            text = hook.text(value)
            if gradient != text:
                edits = hook.rewrite().replace(value, f"({text}).to({gradient})").edits()
        return self.found(
            say(
                "The hook {name} was given a gradient of type {was} and returned one of type {got}.",
                name=named_hook(case),
                was=was,
                got=got,
            ),
            marks,
            Fix(
                say("Return it in the dtype and on the device of the gradient."),
                hook.source.code(*edits) if hook is not None and edits else "return result.to(g)",
                edits,
                "high" if edits and "Meta" not in got else "medium",
            ),
            confidence=confidence,
            apart="" if confidence == "high" else say("Which hook of this name it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 2)

            def precise(self, grad):
                return grad.double() / 3

            def forward(self, x):
                out = self.layer(x)
                out.register_hook(self.precise)
                return out.sum()

        net = Net()
        net(torch.randn(4, 3)).backward()

    @staticmethod
    def good():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 2)

            def precise(self, grad):
                return (grad.double() / 3).to(grad.dtype)

            def forward(self, x):
                out = self.layer(x)
                out.register_hook(self.precise)
                return out.sum()

        net = Net()
        net(torch.randn(4, 3)).backward()
